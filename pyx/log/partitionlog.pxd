"""What a `Partition` of partition.pxd is inside: for those that change it, or read what has no function there.

Locks, in the order in which they may be taken: `cleaning` (one compaction pass at a time), `upkeep` (one flush,
retention, stop or delete of a partition at a time; held while the disk works), the LogSet's, the partition's `lock`
(held for checks, one write and the indexes), its `seldom`, a segment's.

Whoever must not wait for a disk (the control plane's loop, and who holds the lock of logtable.pxd's tables) takes
`seldom` alone and reads the offsets, which are atomic: a write that hangs keeps `lock` for as long.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from penstock.pyx.linux.posix cimport (
    ENOENT, atomic_add32, atomic_load32, atomic_store32, atomic_store64, atomic_swap32, eventfd_write,
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock,
)
from penstock.pyx.log.endslots cimport EndChunks, EndSlot, release_chunks
from penstock.pyx.log.epochs cimport epochs_cut_start, epochs_write
from penstock.pyx.log.files cimport dropped
from penstock.pyx.log.logconfig cimport LogConfig
from penstock.pyx.log.logstate cimport NOTE_GONE, LogState, note
from penstock.pyx.log.partition cimport ISOLATION_COMMITTED, ISOLATION_UNCOMMITTED, Partition
from penstock.pyx.log.producerstate cimport EndedTxn, producers_first_open
from penstock.pyx.log.role cimport NO_EPOCH, ROLE_LEADER, Mark
from penstock.pyx.log.segment cimport DeletedFile, Segment
from penstock.pyx.log.topictally cimport PartitionTally, TopicTally
from penstock.pyx.record.frame cimport TOPIC_ID_BYTES

cdef enum FolderSpace:
    FOLDER_HAS_SPACE = 0
    FOLDER_FULL = 1                    # an append found none; said once, until the control plane sets another value
    FOLDER_RESERVED = 2                # what there is is kept for the broker itself: clients are refused

# Partitions of which the control plane is to hear.
cdef struct PartitionMail:
    pthread_mutex_t lock
    vector[Partition*] partitions      # a reference to each
    int fd                             # eventfd of the control plane, written when one is added; -1 = none

# What the partitions of one log folder (log.dirs) share. Reference counted.
cdef struct LogFolder:
    int32_t refs
    int32_t failed                     # atomic: errno of the first failure, all its partitions are offline; 0 = none
    int32_t space                      # atomic: FolderSpace
    int32_t rolled                     # atomic: a segment was sealed and isn't flushed yet
    int32_t ahead                      # atomic: a segment's file has more than its batches, for appends to come
    int32_t doubted                    # atomic: a network thread waits for the proof of a segment
    int news                           # eventfd of the control plane, written when one of them is set; -1 = none
    EndChunks* ends                    # the slots of its logs
    PartitionMail entrants             # with a replica that may enter the ISR
    PartitionMail moved                # whose high watermark or role the control plane waits for

cdef inline void folder_tell(LogFolder* folder) noexcept nogil:
    if folder.news >= 0:
        eventfd_write(folder.news, 1)

cdef inline void folder_fail(LogFolder* folder, int error) noexcept nogil:
    if atomic_load32(&folder.failed) == 0:
        atomic_store32(&folder.failed, error)
        folder_tell(folder)

cdef inline void folder_ran_full(LogFolder* folder) noexcept nogil:
    if atomic_load32(&folder.space) == FOLDER_HAS_SPACE:
        atomic_store32(&folder.space, FOLDER_FULL)
        folder_tell(folder)

cdef inline void mail_open(PartitionMail* mail, int fd) noexcept nogil:
    pthread_mutex_init(&mail.lock, NULL)
    mail.fd = fd

# All of them join `out`; the caller releases their references.
cdef inline void mail_take(PartitionMail* mail, vector[Partition*]& out) noexcept nogil:
    cdef size_t i
    pthread_mutex_lock(&mail.lock)
    for i in range(mail.partitions.size()):
        out.push_back(mail.partitions[i])
    mail.partitions.clear()
    pthread_mutex_unlock(&mail.lock)

cdef inline void folder_release(LogFolder* folder) noexcept nogil:
    if folder != NULL and atomic_add32(&folder.refs, -1) == 0:
        release_chunks(folder.ends)
        dropped[LogFolder](folder)

# What is true of a log and its log folder's checkpoints don't say yet: amendment.py says what the fields are. `upkeep`
# covers it.
cdef struct Amendment:
    int64_t number                     # atomic; of the newest one, written or not
    int32_t owed                       # atomic: there is a file, for as long as the checkpoints don't have it
    int64_t end
    int64_t least_end
    int64_t recovery_point
    int64_t first_segment
    int64_t log_start
    int64_t kept
    int64_t kept_bytes
    bint done
    bint holes

# A partition that isn't open (its log is still being recovered, or its folder is offline) has no folder and no
# segments; it is `stopped` or `offline` for good, and another takes its place once it can be opened.
cdef struct PartitionLog:
    int32_t refs
    pthread_mutex_t lock
    # Of what changes seldom: `wanted`, the epochs, which segments there are. To change the latter two takes `lock`,
    # too. No file is touched under it.
    pthread_mutex_t seldom
    pthread_mutex_t upkeep
    pthread_mutex_t cleaning           # held by a compaction pass from its first to its last step
    int32_t cancelled                  # atomic: how many want a pass to end, and no other to begin
    int32_t held                       # atomic: its move is being finished: requests wait until that is over
    int32_t appending                  # atomic: produce requests that have found it and aren't done with it
    int32_t swapping                   # atomic: a pass puts files in the place of others, whatever `config` says by now
    string topic
    int32_t index
    uint8_t topic_id[TOPIC_ID_BYTES]
    PartitionTally* tally              # of topic_tally, as all logs before it had it
    TopicTally* topic_tally
    LogFolder* folder
    LogConfig config                   # in force
    LogConfig wanted                   # will be for whoever takes `lock` next
    int32_t reconfigured               # atomic: `wanted` is another than `config`
    LogState log
    EndSlot end_slot                   # what `log.log_end` is stored in too, for the start after a kill -9
    int32_t leader_epoch               # atomic; set under the lock
    int32_t role                       # atomic: Role; set under the lock, as all of the following
    int32_t leader_id                  # NO_BROKER: nobody leads, or there is no cluster
    int64_t broker_epoch               # this broker's, to which the role was told
    int32_t partition_epoch            # the version of the partition's state in the metadata store
    int32_t leads_since                # the leader epoch from which on it has led without a pause; NO_EPOCH
    int32_t unclean_epoch              # the newest that an unclean election began; NO_EPOCH
    int32_t isr_n                      # members of the ISR
    int32_t enough                     # how many it needs before the high watermark moves
    int64_t epoch_start                # atomic: the log end when it took the lead
    int32_t sole                       # atomic: it leads, and nobody else can be elected, be the lease over
    int32_t isolated                   # atomic: the lease is over and a member of MAX is silent: no client is served
    vector[Mark] marks                 # of the other replicas, while it leads
    int32_t entrant                    # atomic: it is among the `entrants` of its folder
    int32_t cutting                    # atomic; set under the lock: nothing is appended until a cut's files are right
    Amendment amendment
    int64_t removed_below              # deletions below it may be missing (removals.pxd); set with `upkeep` held, too
    bint removed_noted                 # its file says so; `upkeep` covers it
    int64_t hole_from                  # offsets that a leader's answer has left out, while the log is dense
    int64_t hole_to
    int64_t unchecked_start            # a log start of Kafka's unchecked file: it deletes nothing
    int64_t high_watermark             # atomic, as is last_stable; set under the lock
    int64_t last_stable
    vector[EndedTxn] ended             # whose marker isn't below the high watermark, in the order of markers
    uint64_t waiting_high              # reactors that wait for the high watermark
    uint64_t waiting_log_end           # reactors that wait for the log end: followers fetch from them
    uint64_t waiting_stable            # reactors that wait for the last stable offset
    bint awaited                       # the control plane waits for the high watermark
    int32_t stopped                    # atomic, as `offline`: set under the lock, but read without it, too
    int32_t offline                    # the disk failed under it: what is in the page cache can't be believed any more
    int64_t writing_since_ms           # atomic, monotonic clock: an append holds the lock since then; 0: none does
    int64_t flushing_since_ms          # the same of a flush that an append waits for, and `upkeep`
    int64_t flushed_ms                 # when the active segment was last flushed
    int64_t log_end_flushed
    bint owes_flush                    # flush.messages has asked for a flush: nothing more is shown before it
    bint epochs_unsynced               # leader-epoch-checkpoint was replaced since it was last synced
    bint epochs_unwritten              # the newest epoch has no batch yet: it is written with its first one
    bint changed                       # since it was opened
    int64_t flush_at_ms                # when a sealed segment is to be flushed; 0: none waits for it
    int32_t ahead                      # atomic: its active segment's file has more than its batches, or had
    int32_t doubted                    # atomic: a segment is `doubted`
    int64_t ahead_end                  # the log end when give_back_idle last ran
    int64_t roll_jitter_ms             # taken off segment_ms for the segment that is written
    # Segments that retention has let go, until the checkpoints say where the log begins now: if this process is killed,
    # the next start must not miss them. `lock` covers it.
    vector[Segment*] expired
    vector[DeletedFile] trash          # of deleted segments, until file_delete_delay_ms is over; `upkeep` covers it

cdef inline PartitionLog* log_of(Partition* partition) noexcept nogil:
    return <PartitionLog*>partition

# The checkpoints have all of it; its number stays.
cdef inline void amendment_clear(Amendment* a) noexcept nogil:
    atomic_store32(&a.owed, 0)
    a.end = a.least_end = a.recovery_point = a.first_segment = a.log_start = a.kept = -1
    a.kept_bytes = 0
    a.done = True
    a.holes = False

# Before `upkeep` is taken to stop a log for good: nothing writes into its folder any more.
cdef inline void end_cleaning(PartitionLog* p) noexcept nogil:
    atomic_add32(&p.cancelled, 1)
    pthread_mutex_lock(&p.cleaning)
    pthread_mutex_unlock(&p.cleaning)

# A reference to it is put with the others. Under its lock, or by whoever else knows that its folder stays.
cdef inline void mail_put(PartitionMail* mail, PartitionLog* p) noexcept nogil:
    atomic_add32(&p.refs, 1)
    pthread_mutex_lock(&mail.lock)
    mail.partitions.push_back(<Partition*>p)
    pthread_mutex_unlock(&mail.lock)
    if mail.fd >= 0:
        eventfd_write(mail.fd, 1)

# Under the lock, when the high watermark or the role has changed: the control plane looks again, if it waits.
cdef inline void tell_moved(PartitionLog* p) noexcept nogil:
    if p.awaited and p.folder != NULL:
        p.awaited = False
        mail_put(&p.folder.moved, p)

# Under the lock: all network threads with a request that waits for anything. The control plane hears of it by mail.
cdef inline uint64_t take_all_waiting(PartitionLog* p) noexcept nogil:
    cdef uint64_t reactors = p.waiting_high | p.waiting_log_end | p.waiting_stable
    tell_moved(p)
    p.waiting_high = 0
    p.waiting_log_end = 0
    p.waiting_stable = 0
    return reactors

# Under the lock, after the log end has moved.
cdef inline uint64_t take_waiting_log_end(PartitionLog* p) noexcept nogil:
    cdef uint64_t reactors = p.waiting_log_end
    p.waiting_log_end = 0
    return reactors

cdef inline int64_t end_of(const PartitionLog* p, int8_t isolation) noexcept nogil:
    if isolation == ISOLATION_COMMITTED:
        return p.last_stable
    return p.high_watermark if isolation == ISOLATION_UNCOMMITTED else p.log.log_end

# Under the lock, before the configuration is looked at.
cdef inline void take_config(PartitionLog* p) noexcept nogil:
    if not atomic_load32(&p.reconfigured):
        return
    pthread_mutex_lock(&p.seldom)
    atomic_store32(&p.reconfigured, 0)
    p.config = p.wanted
    p.log.index_interval_bytes = p.config.index_interval_bytes
    pthread_mutex_unlock(&p.seldom)

# Under the lock, when the epochs changed. Should the write fail, recovery learns the epochs from the batches again.
cdef inline int write_epochs(PartitionLog* p, bint sync) noexcept nogil:
    cdef string path = p.log.folder
    path.append(b"/leader-epoch-checkpoint")
    p.epochs_unsynced = not sync
    p.epochs_unwritten = False
    return epochs_write(&p.log.epochs, path.c_str(), sync)

# Under the lock: what the epochs say of records before the log start is forgotten. Whether anything was.
cdef inline bint cut_epochs(PartitionLog* p) noexcept nogil:
    cdef bint changed
    pthread_mutex_lock(&p.seldom)
    changed = epochs_cut_start(&p.log.epochs, p.log.log_start)
    pthread_mutex_unlock(&p.seldom)
    return changed

# Under the lock: whether it may be asked for what a leader alone answers clients.
cdef inline bint serves_clients(const PartitionLog* p) noexcept nogil:
    return p.role == ROLE_LEADER and not p.isolated

# Under the lock. Whoever doesn't open or cut the log calls raise_high_watermark, or advance_high_watermark.
cdef inline void put_high_watermark(PartitionLog* p, int64_t end) noexcept nogil:
    atomic_store64(&p.high_watermark, end)

# Under the lock: high watermark and last stable offset are never below the log start.
cdef inline void keep_above_log_start(PartitionLog* p) noexcept nogil:
    if p.high_watermark < p.log.log_start:
        put_high_watermark(p, p.log.log_start)
    atomic_store64(&p.last_stable, max(p.last_stable, p.log.log_start))

# Under the lock, when flush.messages has to be believed: whether an append that ends here waits for the disk.
cdef inline bint is_flush_due(const PartitionLog* p) noexcept nogil:
    return p.log.log_end - p.log_end_flushed >= p.config.flush_messages

# Under the lock, or by whoever has `seldom`: the leader epoch of the last batch; NO_EPOCH: the log is empty. An epoch
# that has no batch yet begins at the log end.
cdef inline int32_t last_batch_epoch(const PartitionLog* p) noexcept nogil:
    cdef size_t i = p.log.epochs.entries.size()
    while i > 0 and p.log.epochs.entries[i - 1].start_offset >= p.log.log_end:
        i -= 1
    return p.log.epochs.entries[i - 1].epoch if i > 0 else NO_EPOCH

# Under the lock: how far this broker's own copy may be shown. Where flush.messages says that an append waits for the
# disk nobody reads it before.
cdef inline int64_t own_end(const PartitionLog* p) noexcept nogil:
    return p.log_end_flushed if p.owes_flush else p.log.log_end

# Whether a member of the ISR holds the high watermark back, wherever it says that it is: its fetches aren't of the
# registration that the controller has named.
cdef inline bint has_to_wait_for(const Mark* mark) noexcept nogil:
    return mark.in_isr and (mark.named_epoch == NO_EPOCH or mark.broker_epoch != mark.named_epoch)

# Under the lock: the least log end of all that are in sync, or may be by now (MAX, broker/cluster/leader.py).
cdef inline int64_t committed_end(const PartitionLog* p) noexcept nogil:
    cdef int64_t least = own_end(p)
    cdef size_t i
    for i in range(p.marks.size()):
        if p.marks[i].in_max:
            least = min(least, <int64_t>0 if has_to_wait_for(&p.marks[i]) else p.marks[i].end)
    return least

# Under the lock: the first offset of the transactions that are open, or whose marker isn't below the high watermark;
# else that.
cdef inline int64_t stable_end(const PartitionLog* p) noexcept nogil:
    cdef int64_t stable = producers_first_open(&p.log.producers, p.high_watermark)
    cdef size_t i
    for i in range(p.ended.size()):
        stable = min(stable, p.ended[i].first_offset)
    return stable

# Under the lock; nothing else moves it: whoever knows that all below `end` is committed. A transaction ends once the
# high watermark is past its marker, as the marker may be lost with its leader before. Gives the network threads to be
# woken.
cdef inline uint64_t raise_high_watermark(PartitionLog* p, int64_t end) noexcept nogil:
    cdef uint64_t wake = 0
    cdef size_t settled = 0
    cdef int64_t stable
    if end > p.high_watermark:
        put_high_watermark(p, end)
        wake = p.waiting_high
        p.waiting_high = 0
        tell_moved(p)
        while settled < p.ended.size() and p.ended[settled].last_offset < end:
            settled += 1
        if settled > 0:
            p.ended.erase(p.ended.begin(), p.ended.begin() + settled)
        stable = stable_end(p)
        if stable > p.last_stable:
            atomic_store64(&p.last_stable, stable)
            wake |= p.waiting_stable
            p.waiting_stable = 0
    keep_above_log_start(p)
    return wake

# Under the lock, after an append, a flush, another replica's fetch, a change of role or members: a leader's high
# watermark is where all that are in sync have come to. It stands still while they are too few, as a replica that has
# left may be elected, too, and isn't waited for (strict min ISR). A partition of one replica has no marks.
cdef inline uint64_t advance_high_watermark(PartitionLog* p) noexcept nogil:
    if p.role != ROLE_LEADER or p.isr_n < p.enough:
        return 0
    return raise_high_watermark(p, committed_end(p))

# A replica outside of the ISR has all that it needs to enter: the control plane hears of it.
cdef inline void tell_entrant(PartitionLog* p) noexcept nogil:
    if p.folder != NULL and atomic_swap32(&p.entrant, 1) == 0:
        mail_put(&p.folder.entrants, p)

# Under the lock: what is below `offset`, which lies in the log, is not read any more.
cdef inline void move_log_start(PartitionLog* p, int64_t offset) noexcept nogil:
    atomic_store64(&p.log.log_start, offset)
    keep_above_log_start(p)
    if cut_epochs(p):
        write_epochs(p, False)

# Under the lock: a segment has to be proved (proof.pxd) before it can serve. Whoever can't do that answers
# NOT_LEADER_OR_FOLLOWER, which clients try again.
cdef inline void doubt_segment(PartitionLog* p, Segment* s) noexcept nogil:
    s.proved = False
    s.doubted = True
    atomic_store32(&p.doubted, 1)

# Of what a network thread came upon: the control plane has it proved.
cdef inline void tell_doubt(PartitionLog* p) noexcept nogil:
    if p.folder != NULL and atomic_load32(&p.folder.doubted) == 0:
        atomic_store32(&p.folder.doubted, 1)
        folder_tell(p.folder)

# Whether the disk failed under it, or under another partition of its folder.
cdef inline bint is_offline(const PartitionLog* p) noexcept nogil:
    return atomic_load32(&p.offline) or (p.folder != NULL and atomic_load32(&p.folder.failed) != 0)

# The disk can't be believed any more. Under the lock; gives the network threads to be woken. A file that isn't there
# was removed by somebody: that takes no other partition along.
cdef inline uint64_t fail_log(PartitionLog* p, int error) noexcept nogil:
    if error == ENOENT and not p.offline:
        note(&p.log, NOTE_GONE, 0, 0)
        atomic_store32(&p.doubted, 1)
        tell_doubt(p)                  # who hears of that says the note
    atomic_store32(&p.offline, True)
    if p.folder != NULL and error != ENOENT:
        folder_fail(p.folder, error)
    return take_all_waiting(p)
