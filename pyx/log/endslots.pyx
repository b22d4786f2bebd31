"""Where each log ends, for the start after a kill -9; see endslots.pxd."""

import contextlib
import errno
import os
import struct
import threading
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint64_t
from pathlib import Path

from penstock import log
from penstock.durable import boot_id
from penstock.pyx.linux.posix cimport (
    MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, atomic_store64, atomic_swap64, memcmp, memcpy, mmap, munmap,
)
from penstock.pyx.linux.posix cimport errno as os_errno
from penstock.pyx.log.files cimport dropped, made
from penstock.pyx.record.crc import crc32c

NAME = "penstock-log-ends"
SLOT_BYTES = 64
CHUNK_BYTES = 1 << 14
END_MAX = (1 << 48) - 1

_log = log.get(__name__)
_HEAD = struct.Struct("<8sI36s")
_IDENTITY = struct.Struct("<16siI")
_KEY = struct.Struct("<iI")
_SUM = struct.Struct("<I")
_WORD = struct.Struct("<q")
_MAGIC, _VERSION = b"PSTKENDS", 1
cdef enum:
    IDENTITY = 28                      # of a slot: topic id, partition, sums of the name and of all of it
    END_AT = 32                        # where its end is
    SLOT = 64
    CHUNK = 1 << 14
    SLOTS = CHUNK // SLOT              # in a chunk

cdef extern from *:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <signal.h>
    #include <stddef.h>
    #include <sys/mman.h>

    #define GUARDED_MAX 16384

    static struct { char* start; size_t n; } guarded[GUARDED_MAX];
    static int guards_lost;
    static struct sigaction before_guards;
    static pthread_mutex_t guards_lock = PTHREAD_MUTEX_INITIALIZER;

    static void on_bus_error(int number, siginfo_t* info, void* context) {
        char* at = (char*)info->si_addr;
        int kept = errno;
        for (int i = 0; i < GUARDED_MAX; i++) {
            char* start = __atomic_load_n(&guarded[i].start, __ATOMIC_ACQUIRE);
            if (start == NULL || at < start || at >= start + guarded[i].n) continue;
            void* put = mmap(start, guarded[i].n, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            errno = kept;
            if (put != start) break;
            __atomic_store_n(&guards_lost, 1, __ATOMIC_RELEASE);
            return;
        }
        if (before_guards.sa_flags & SA_SIGINFO) before_guards.sa_sigaction(number, info, context);
        else if (before_guards.sa_handler != SIG_DFL && before_guards.sa_handler != SIG_IGN)
            before_guards.sa_handler(number);
        else sigaction(number, &before_guards, NULL);      /* the access is made again, and ends the process */
    }

    /* Whether a bus error there will be answered. */
    static int guard_memory(char* start, size_t n) {
        static int installed = 0;
        int done = 0;
        pthread_mutex_lock(&guards_lock);
        if (!installed) {
            struct sigaction action = {};
            action.sa_sigaction = on_bus_error;
            action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
            sigemptyset(&action.sa_mask);
            installed = sigaction(SIGBUS, NULL, &before_guards) == 0 && sigaction(SIGBUS, &action, NULL) == 0;
        }
        for (int i = 0; installed && !done && i < GUARDED_MAX; i++) {
            if (guarded[i].start != NULL) continue;
            guarded[i].n = n;
            __atomic_store_n(&guarded[i].start, start, __ATOMIC_RELEASE);
            done = 1;
        }
        pthread_mutex_unlock(&guards_lock);
        return done;
    }

    static void unguard_memory(char* start) {
        pthread_mutex_lock(&guards_lock);
        for (int i = 0; i < GUARDED_MAX; i++)
            if (guarded[i].start == start) __atomic_store_n(&guarded[i].start, (char*)NULL, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&guards_lock);
    }

    static int guards_were_lost(void) { return __atomic_exchange_n(&guards_lost, 0, __ATOMIC_ACQ_REL); }
    """
    int guard_memory(char* start, size_t n) noexcept nogil
    void unguard_memory(char* start) noexcept nogil
    int guards_were_lost() noexcept nogil


cdef void _unmap(EndChunks* chunks) noexcept nogil:
    cdef size_t i
    for i in range(chunks.all.size()):
        unguard_memory(chunks.all[i])
        munmap(chunks.all[i], CHUNK)
    chunks.all.clear()


cdef void release_chunks(EndChunks* chunks) noexcept nogil:
    if chunks != NULL:
        _unmap(chunks)
        dropped[EndChunks](chunks)


def slots_lost():
    """Whether a bus error has put memory in the place of slots since the last call; see endslots.pyi."""
    return bool(guards_were_lost())


def read_ends(folder):
    """The ends that a folder's file says, if it is of this start of the machine; see endslots.pyi."""
    boot = boot_id()
    try:
        data = Path(folder, NAME).read_bytes()
    except OSError:
        return {}
    if len(data) < SLOT_BYTES or not boot or data[:SLOT_BYTES] != _head(boot):
        return {}
    found = {}
    for at in range(SLOT_BYTES, len(data) - SLOT_BYTES + 1, SLOT_BYTES):
        identity = data[at : at + _IDENTITY.size]
        (salt,) = _SUM.unpack_from(data, at + _IDENTITY.size)
        (word,) = _WORD.unpack_from(data, at + END_AT)
        end = word & END_MAX
        if word != 0 and salt == crc32c(identity) and word == end_word(end, salt):
            topic_id, partition, name_sum = _IDENTITY.unpack(identity)
            found[_KEY.pack(partition, name_sum)] = topic_id, end
    return found


def key_of(str topic, int partition):
    """What a log has in the answer of `read_ends`; see endslots.pyi."""
    return _KEY.pack(partition, crc32c(topic.encode()))


def _head(boot):
    head = _HEAD.pack(_MAGIC, _VERSION, boot.encode())
    return (head + _SUM.pack(crc32c(head))).ljust(SLOT_BYTES, b"\0")


def _slot(key, topic_id, int64_t end):
    identity = topic_id + key
    salt = crc32c(identity)
    slot = (identity + _SUM.pack(salt)).ljust(END_AT, b"\0") + _WORD.pack(end_word(end, salt))
    return slot.ljust(SLOT_BYTES, b"\0")


def _write_all(fd, data, position):
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, position)
        view, position = view[done:], position + done


cdef class EndSlots:
    """The slots of one log folder; see endslots.pxd. Safe from any thread.

    `known()`: the ends of logs that weren't opened yet, as `read_ends` says them. The folder has at most one
    `EndSlots` that takes slots.
    """

    def __init__(self, str folder, known):
        self._path = Path(folder, NAME)
        self._known = known
        self._growing = threading.Lock()   # held while the file is written; taken before:
        self._lock = threading.Lock()      # which slot is whose
        self._inode = None
        self._places = {}
        self._free = []

    def __cinit__(self):
        self.chunks = made[EndChunks]()

    cdef int64_t* _word(self, Py_ssize_t place):
        return <int64_t*>(self.chunks.all[place // SLOTS] + (place % SLOTS) * SLOT + END_AT)

    cdef EndSlot take(self, str topic, bytes topic_id, int partition, int64_t end):
        cdef EndSlot slot
        cdef bytes identity
        cdef const char* source
        slot.word = NULL
        slot.salt = 0
        if not any(topic_id):
            return slot                    # any topic's of that name
        key = key_of(topic, partition)
        place = self._place(key)
        if place is None:
            return slot
        identity = topic_id + key
        slot.word = self._word(place)
        slot.salt = crc32c(identity)
        identity += _SUM.pack(slot.salt)
        source = PyBytes_AS_STRING(identity)
        with nogil:                        # a store may wait for the disk
            if memcmp(<char*>slot.word - END_AT, source, IDENTITY) != 0:
                atomic_swap64(<uint64_t*>slot.word, 0)
                memcpy(<char*>slot.word - END_AT, source, IDENTITY)
            atomic_store64(slot.word, end_word(end, slot.salt))
        return slot

    def _place_there(self, key):
        """The number of a log's slot in what is mapped; None: there is no room."""
        with self._lock:
            place = self._places.get(key)
            if place is None and self._free:
                place = self._places[key] = self._free.pop()
            return place

    def _place(self, key):
        """The number of a log's slot; None: there is none."""
        place = self._place_there(key)
        if place is not None:
            return place
        try:
            with self._growing:
                while (place := self._place_there(key)) is None:
                    if self._inode is None:
                        self._begin()
                    else:
                        self._grow()
                return place
        except OSError as error:
            if not self._said:
                self._said = True
                _log.warning(
                    "`%s` can't be written: %s. If this process is killed, a lost end of a log is only noticed up "
                    "to the last checkpoint", self._path, error,
                )
            return None

    cdef object _begin(self):
        """The file is written, with what is known."""
        boot = boot_id()
        if not boot:
            raise OSError(errno.ENODATA, "the kernel doesn't say its boot id")
        known = self._known()
        data = _head(boot) + b"".join(_slot(key, topic_id, end) for key, (topic_id, end) in known.items())
        count = -(-(len(data) + SLOT_BYTES) // CHUNK_BYTES)      # with a free one, at least
        beside = self._path.with_name(NAME + ".tmp")
        fd = -1
        try:
            beside.unlink(missing_ok=True)
            fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            _write_all(fd, data.ljust(count * CHUNK_BYTES, b"\0"), 0)
            for chunk in range(count):
                self._map(fd, chunk)
            beside.replace(self._path)
            found = os.fstat(fd)
        except OSError:
            _unmap(self.chunks)
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)       # an old one would be believed later
            raise
        finally:
            if fd >= 0:
                os.close(fd)
        with self._lock:
            self._places = {key: place for place, key in enumerate(known, 1)}
            self._free = list(range(count * SLOTS - 1, len(known), -1))
            self._inode = found.st_dev, found.st_ino

    cdef object _grow(self):
        """One more chunk, of the file that this process has written."""
        cdef size_t count = self.chunks.all.size()
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) != self._inode or found.st_size < <int64_t>count * CHUNK:
                raise OSError(errno.ESTALE, "somebody has changed it", str(self._path))
            _write_all(fd, bytes(CHUNK_BYTES), <int64_t>count * CHUNK)
            self._map(fd, count)
        finally:
            os.close(fd)
        with self._lock:
            self._free += range(<int64_t>(count + 1) * SLOTS - 1, <int64_t>count * SLOTS - 1, -1)

    cdef object _map(self, int fd, size_t chunk):
        cdef void* where
        with nogil:
            where = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, <int64_t>chunk * CHUNK)
        if where == MAP_FAILED:
            raise OSError(os_errno, os.strerror(os_errno), str(self._path))
        if not guard_memory(<char*>where, CHUNK):
            munmap(where, CHUNK)
            raise OSError(errno.ENOMEM, "this process has too many of such files", str(self._path))
        self.chunks.all.push_back(<char*>where)

    def drop(self, str topic, int partition):
        """Forget a log; see endslots.pyi."""
        cdef int64_t* word
        key = key_of(topic, partition)
        with self._lock:
            place = self._places.pop(key, None)
        if place is None:
            return
        word = self._word(place)
        with nogil:
            atomic_store64(word, 0)
        with self._lock:
            self._free.append(place)
