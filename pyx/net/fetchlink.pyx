"""Connections to leaders; see fetchlink.pxd."""

from cython.operator cimport dereference as at
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libcpp.vector cimport vector

from penstock.pyx.errorcodes cimport (
    CORRUPT_MESSAGE, FETCH_SESSION_ID_NOT_FOUND, FETCH_SESSION_TOPIC_ID_ERROR, INVALID_FETCH_SESSION_EPOCH,
    KAFKA_STORAGE_ERROR, NETWORK_EXCEPTION, OFFSET_OUT_OF_RANGE, REQUEST_TIMED_OUT,
)
from penstock.pyx.linux.posix cimport (
    EAGAIN, EINTR, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLL_CTL_ADD, EPOLL_CTL_MOD, atomic_load32, atomic_load64,
    atomic_store64, epoll_event, errno, eventfd_write, free, memcmp, memcpy, memmove, memset,
    pthread_cond_broadcast, pthread_mutex_lock, pthread_mutex_unlock, realloc, relaxed_add64,
)
from penstock.pyx.log.files cimport dropped, made
from penstock.pyx.log.following cimport (
    FOLLOW_DONE, FOLLOW_REFUSED, FOLLOW_ROTTEN, FOLLOW_STALE, FollowResult, FollowerAsk, follower_append,
    follower_ask, follower_begin, follower_cut,
)
from penstock.pyx.log.partition cimport (
    Partition, partition_enter, partition_find_id, partition_leave, partition_release, partition_topic,
)
from penstock.pyx.net.fetchreply cimport (
    REPLY_BAD, REPLY_END, REPLY_HEAD, REPLY_MORE, REPLY_PARTITION, Reply, ReplyEvent, ReplyPart, reply_next,
)
from penstock.pyx.net.fetchrequest cimport FetchKey, FetchPart, write_fetch
from penstock.pyx.net.transport cimport (
    transport_close, transport_none, transport_open, transport_receive, transport_send, transport_watch,
)
from penstock.pyx.record.batch cimport BATCH_OK, BATCH_PARTIAL, BatchHeader, batch_parse
from penstock.pyx.record.frame cimport TOPIC_ID_BYTES, writer_free

cdef enum:
    AHEAD_BYTES = 32768               # received beyond what is wanted, so that the next partition's length is known
    BUFFER_BYTES_MIN = 131072
    BUFFER_STEP_BYTES = 2097152       # beyond it a buffer grows as bytes come, whatever the leader says will come
    SPARE_BYTES_MAX = 4194304
    TURN_RECEIVES = 16                # before other leaders have their turn
    REQUEST_KEPT_BYTES = 65536

cdef enum Deed:
    DEED_APPEND = 0
    DEED_CUT = 1
    DEED_BEGIN = 2


# --- news ---------------------------------------------------------------------------------------------------
cdef void news_add(NewsQueue* news, const NewsItem* item) noexcept nogil:
    pthread_mutex_lock(&news.lock)
    # Connections are few, and each is told of once until it is another one.
    if news.items.size() < NEWS_MAX or item.kind <= NEWS_WANTED:
        news.items.push_back(item[0])
    else:
        news.lost += 1
    pthread_mutex_unlock(&news.lock)
    eventfd_write(news.fd, 1)


cdef void _tell(Fetcher* f, NewsKind kind, const Link* link, const Followed* one, int16_t error) noexcept nogil:
    """`one`: NULL if it is about the connection."""
    cdef NewsItem item
    cdef const char* name
    cdef size_t n = 0
    item.kind = kind
    item.leader = link.leader
    item.index = -1
    item.error = error
    item.thread = f.number
    if one != NULL:
        name = partition_topic(one.partition, &n)
        item.topic.assign(name, n)
        item.index = one.key.index
    news_add(f.news, &item)


cdef void _note_error(Fetcher* f, const Link* link, Followed* one, NewsKind kind, int16_t error) noexcept nogil:
    relaxed_add64(&f.errors, 1)
    if error != one.error:
        one.error = error
        _tell(f, kind, link, one, error)


# --- partitions ---------------------------------------------------------------------------------------------
cdef int _compare(const FetchKey* key, const FetchKey* other) noexcept nogil:
    cdef int order = memcmp(key.topic_id, other.topic_id, TOPIC_ID_BYTES)
    return order if order else (key.index > other.index) - (key.index < other.index)


cdef size_t _place(const Link* link, const FetchKey* key) noexcept nogil:
    """Of the first partition that isn't before the key."""
    cdef size_t low = 0, high = link.followed.size(), middle
    while low < high:
        middle = (low + high) // 2
        if _compare(&link.followed[middle].key, key) < 0:
            low = middle + 1
        else:
            high = middle
    return low


cdef Followed* _find(const Link* link, const FetchKey* key) noexcept nogil:
    cdef size_t place = _place(link, key)
    if place < link.followed.size() and _compare(&link.followed[place].key, key) == 0:
        return link.followed[place]
    return NULL


cdef void _take_from(vector[Followed*]& those, const Followed* one) noexcept nogil:
    cdef size_t i
    for i in range(those.size()):
        if those[i] == one:
            those.erase(those.begin() + <ssize_t>i)
            return


cdef void _leave_session(Link* link, Followed* one) noexcept nogil:
    if one.in_session:
        one.in_session = False
        link.session_size -= 1
        link.forgotten.push_back(one.key)


cdef void _set_due(Link* link, Followed* one) noexcept nogil:
    one.state = FOLLOWED_DUE
    link.due.push_back(one)


cdef void _delay(Fetcher* f, Link* link, Followed* one, int32_t delay_ms) noexcept nogil:
    """It isn't asked for before that; it is on no list now."""
    one.state = FOLLOWED_DELAYED
    one.due_ms = f.now_ms + delay_ms
    f.next_ms = min(f.next_ms, one.due_ms)
    link.delayed.push_back(one)
    _leave_session(link, one)


cdef int32_t _longer(int32_t delay_ms) noexcept nogil:
    return min(max(2 * delay_ms, <int32_t>DELAY_MS_MIN), <int32_t>DELAY_MS_MAX)


cdef void _delay_longer(Fetcher* f, Link* link, Followed* one) noexcept nogil:
    one.delay_ms = _longer(one.delay_ms)
    _delay(f, link, one, one.delay_ms)


cdef void followed_free(Followed* one) noexcept nogil:
    partition_release(one.partition)
    dropped[Followed](one)


# --- links --------------------------------------------------------------------------------------------------
cdef Link* link_of(Fetcher* f, int32_t leader) noexcept nogil:
    cdef Link* link
    found = f.links.find(leader)
    if found != f.links.end():
        return at(found).second
    link = made[Link]()
    if link == NULL:
        return NULL
    link.leader = leader
    link.used_ms = f.now_ms
    transport_none(&link.transport)
    f.links[leader] = link
    return link


cdef void _give_back_buffer(Fetcher* f, Link* link) noexcept nogil:
    """The thread keeps one: links that wait have none, and the one that is busy needn't have the kernel clear pages."""
    if f.spare_capacity < link.capacity <= SPARE_BYTES_MAX:
        free(f.spare)
        f.spare = link.buffer
        f.spare_capacity = link.capacity
    else:
        free(link.buffer)
    link.buffer = NULL
    link.capacity = 0
    link.start = 0
    link.end = 0


cdef void _drop_connection(Fetcher* f, Link* link) noexcept nogil:
    """All that was asked is asked again, on another connection and in another session."""
    cdef size_t i
    transport_close(&link.transport)
    link.state = LINK_NONE
    _give_back_buffer(f, link)
    writer_free(&link.request)
    for i in range(link.followed.size()):
        if link.followed[i].state == FOLLOWED_ASKED:
            _set_due(link, link.followed[i])
    link_renew(link)


cdef void _end_connection(Fetcher* f, Link* link, int16_t error) noexcept nogil:
    _drop_connection(f, link)
    link.delay_ms = _longer(link.delay_ms)
    link.due_ms = f.now_ms + link.delay_ms
    link.wanted = not link.followed.empty()
    if link.wanted:
        _tell(f, NEWS_DISCONNECTED, link, NULL, error)


cdef void link_free(Fetcher* f, Link* link) noexcept nogil:
    cdef size_t i
    transport_close(&link.transport)
    free(link.buffer)
    writer_free(&link.request)
    for i in range(link.followed.size()):
        followed_free(link.followed[i])
    f.links.erase(link.leader)
    dropped[Link](link)


cdef void link_renew(Link* link) noexcept nogil:
    """The id of the session stays: the next request closes it."""
    cdef size_t i
    for i in range(link.followed.size()):
        link.followed[i].in_session = False
    link.session_size = 0
    link.session_epoch = 0
    link.forgotten.clear()


cdef void link_add(Fetcher* f, Link* link, Followed* one) noexcept nogil:
    link.followed.insert(link.followed.begin() + <ssize_t>_place(link, &one.key), one)
    _set_due(link, one)
    if link.state == LINK_NONE and not link.wanted:
        link.wanted = True
        _tell(f, NEWS_WANTED, link, NULL, 0)


cdef void link_remove(Fetcher* f, Link* link, Followed* one) noexcept nogil:
    _take_from(link.followed, one)
    if one.state == FOLLOWED_DUE:
        _take_from(link.due, one)
    elif one.state == FOLLOWED_DELAYED:
        _take_from(link.delayed, one)
    _leave_session(link, one)
    link.used_ms = f.now_ms
    if link.followed.empty() and link.state == LINK_NONE:
        link.wanted = False                           # whoever is added next wants it
    followed_free(one)


cdef void link_connect(Fetcher* f, Link* link, int fd) noexcept nogil:
    cdef epoll_event event
    _drop_connection(f, link)
    memset(&link.reply, 0, sizeof(Reply))
    memset(&event, 0, sizeof(epoll_event))
    event.events = EPOLLIN
    event.data.ptr = link
    transport_open(&link.transport, fd)
    link.state = LINK_IDLE
    link.wanted = False
    link.used_ms = f.now_ms
    if not transport_watch(&link.transport, f.epoll, EPOLL_CTL_ADD, &event):
        _end_connection(f, link, NETWORK_EXCEPTION)


cdef void link_disconnect(Fetcher* f, Link* link) noexcept nogil:
    _drop_connection(f, link)
    link.wanted = False


# --- asking -------------------------------------------------------------------------------------------------
cdef bint _watch(Fetcher* f, Link* link, uint32_t events) noexcept nogil:
    cdef epoll_event event
    memset(&event, 0, sizeof(epoll_event))
    event.events = events
    event.data.ptr = link
    return transport_watch(&link.transport, f.epoll, EPOLL_CTL_MOD, &event)


cdef void _send(Fetcher* f, Link* link) noexcept nogil:
    cdef ssize_t went
    while link.sent < link.request.n:
        went = transport_send(&link.transport, link.request.p + link.sent, link.request.n - link.sent, False)
        if went > 0:
            link.sent += <size_t>went
        elif went < 0 and errno == EAGAIN:
            if link.state == LINK_SENDING or _watch(f, link, <uint32_t>EPOLLIN | <uint32_t>EPOLLOUT):
                link.state = LINK_SENDING
                return
            _end_connection(f, link, NETWORK_EXCEPTION)
            return
        elif went == 0 or errno != EINTR:
            _end_connection(f, link, NETWORK_EXCEPTION)
            return
    if link.state == LINK_SENDING and not _watch(f, link, EPOLLIN):
        _end_connection(f, link, NETWORK_EXCEPTION)
        return
    link.state = LINK_WAITING
    link.request.n = 0
    if link.request.capacity > REQUEST_KEPT_BYTES:
        writer_free(&link.request)


cdef bint _take_ask(Fetcher* f, Followed* one, FollowerAsk* ask) noexcept nogil:
    """What the log asks with; False: it doesn't follow this leader (any more). A log that was moved to another folder
    is another `Partition`.
    """
    cdef Partition* found
    if not follower_ask(one.partition, ask):
        found = partition_find_id(f.logs, one.key.topic_id, one.key.index)
        if found == NULL:
            return False
        partition_release(one.partition)
        one.partition = found
        if not follower_ask(found, ask):
            return False
    return ask.leader_id == one.leader and ask.broker_epoch == f.terms.broker_epoch


cdef bint _is_same(const FollowerAsk* ask, const FollowerAsk* other) noexcept nogil:
    return (
        ask.leader_epoch == other.leader_epoch
        and ask.offset == other.offset
        and ask.last_epoch == other.last_epoch
        and ask.log_start == other.log_start
    )


cdef void _name(Fetcher* f, Link* link, Followed* one) noexcept nogil:
    """Puts a partition that is on no list into the request, unless its session knows all of it."""
    cdef FollowerAsk ask
    cdef FetchPart part
    if not _take_ask(f, one, &ask):
        _delay_longer(f, link, one)
        return
    if one.was_changed:
        one.was_changed = False
        if _is_same(&ask, &one.ask):                  # the answer has led nowhere, and would come again at once
            _note_error(f, link, one, NEWS_ERROR, CORRUPT_MESSAGE)
            _delay_longer(f, link, one)
            return
        one.delay_ms = 0
        one.error = 0
    if one.was_asked and ask.offset > one.ask.offset:
        relaxed_add64(&f.records, ask.offset - one.ask.offset)
    one.state = FOLLOWED_ASKED
    atomic_store64(&one.lag, max(one.leader_high_watermark - ask.offset, <int64_t>0))
    if one.in_session and _is_same(&ask, &one.ask):
        return
    one.ask = ask
    one.was_asked = True
    if not one.in_session:
        one.in_session = True
        link.session_size += 1
    part.key = one.key
    part.leader_epoch = ask.leader_epoch
    part.offset = ask.offset
    part.last_epoch = ask.last_epoch
    part.log_start = ask.log_start
    f.parts.push_back(part)


cdef void _name_due(Fetcher* f, Link* link) noexcept nogil:
    """All of them if a session begins; each time another one first, should the leader keep no session."""
    cdef vector[Followed*] due
    cdef size_t i, n = link.followed.size()
    cdef Followed* one
    f.parts.clear()
    due.swap(link.due)
    if link.session_epoch != 0:
        for i in range(due.size()):
            _name(f, link, due[i])
        return
    for i in range(n):
        one = link.followed[(link.turn + i) % n]
        if one.state != FOLLOWED_DELAYED:
            _name(f, link, one)


cdef void _forget_named(Link* link) noexcept nogil:
    """A leader takes those to be forgotten out after it has put the others in."""
    cdef size_t i, kept = 0
    cdef Followed* one
    for i in range(link.forgotten.size()):
        one = _find(link, &link.forgotten[i])
        if one == NULL or not one.in_session:
            link.forgotten[kept] = link.forgotten[i]
            kept += 1
    link.forgotten.resize(kept)


cdef void _end_delays(Fetcher* f, Link* link) noexcept nogil:
    cdef size_t i = 0
    cdef Followed* one
    while i < link.delayed.size():
        one = link.delayed[i]
        if one.due_ms <= f.now_ms:
            link.delayed[i] = link.delayed.back()
            link.delayed.pop_back()
            _set_due(link, one)
        else:
            f.next_ms = min(f.next_ms, one.due_ms)
            i += 1


cdef int32_t _wait_ms(const Fetcher* f, const Link* link) noexcept nogil:
    """A partition whose delay ends meanwhile is asked for in time."""
    cdef int64_t wait_ms = f.terms.wait_ms
    cdef size_t i
    for i in range(link.delayed.size()):
        wait_ms = min(wait_ms, max(link.delayed[i].due_ms - f.now_ms, <int64_t>0))
    return <int32_t>wait_ms


cdef void _ask(Fetcher* f, Link* link) noexcept nogil:
    """Sends the next request, if there is something to ask and no other one is out."""
    if link.state != LINK_IDLE or link.followed.empty():
        return
    if f.now_ms < link.due_ms:
        f.next_ms = min(f.next_ms, link.due_ms)
        return
    f.terms.broker_epoch = atomic_load64(&f.broker_epoch)
    _end_delays(f, link)
    _name_due(f, link)
    if link.session_size == 0:
        link_renew(link)                              # nothing is left: a session begins when there is something again
        return
    _forget_named(link)
    link.full = link.session_epoch == 0
    link.wait_ms = _wait_ms(f, link)
    link.correlation_id = 0 if link.correlation_id == INT32_MAX else link.correlation_id + 1
    f.terms.session_id = link.session_id
    f.terms.session_epoch = link.session_epoch
    f.terms.client_id.p = <const uint8_t*>f.client_id
    link.request.n = 0
    link.sent = 0
    write_fetch(&link.request, link.correlation_id, &f.terms, f.parts, link.forgotten)
    link.forgotten.clear()
    if link.request.failed:
        _end_connection(f, link, KAFKA_STORAGE_ERROR)
        return
    link.heard_ms = f.now_ms
    f.next_ms = min(f.next_ms, f.now_ms + link.wait_ms + f.answer_ms)
    relaxed_add64(&f.fetches, 1)
    _send(f, link)


# --- answers ------------------------------------------------------------------------------------------------
cdef bint _begin_work(Fetcher* f, Followed* one) noexcept nogil:
    """Whether its log may be changed: whoever removes it waits until that is over."""
    cdef bint removed
    pthread_mutex_lock(&f.lock)
    removed = one.removed
    if not removed:
        f.working = one.number
    pthread_mutex_unlock(&f.lock)
    return not removed


cdef void _end_work(Fetcher* f) noexcept nogil:
    pthread_mutex_lock(&f.lock)
    f.working = 0
    pthread_cond_broadcast(&f.idle)
    pthread_mutex_unlock(&f.lock)


cdef FollowResult _do(Followed* one, Deed deed, const ReplyPart* part) noexcept nogil:
    if deed == DEED_CUT:
        return follower_cut(one.partition, &one.ask, part.diverging_epoch, part.diverging_end)
    if deed == DEED_BEGIN:
        return follower_begin(one.partition, &one.ask, part.log_start, part.removed_below, one.begun_again)
    return follower_append(
        one.partition, &one.ask, part.records, part.n, part.leader_high_watermark, part.log_start, part.removed_below
    )


cdef void _on_result(Fetcher* f, Link* link, Followed* one, FollowResult result) noexcept nogil:
    if result == FOLLOW_DONE:
        if not one.was_changed:
            one.delay_ms = 0
            one.error = 0
        _set_due(link, one)
    elif result == FOLLOW_STALE:
        _delay_longer(f, link, one)                   # its role is another one, which orders will tell
    elif result == FOLLOW_ROTTEN:
        _note_error(f, link, one, NEWS_ROTTEN, CORRUPT_MESSAGE)
        _delay(f, link, one, ROTTEN_MS if one.rotten else ROTTEN_MS_FIRST)
    elif result == FOLLOW_REFUSED:
        _note_error(f, link, one, NEWS_REFUSED, OFFSET_OUT_OF_RANGE)
        _delay_longer(f, link, one)
    else:
        _note_error(f, link, one, NEWS_ERROR, KAFKA_STORAGE_ERROR)
        _delay_longer(f, link, one)


cdef void _work(Fetcher* f, Link* link, Followed* one, Deed deed, const ReplyPart* part) noexcept nogil:
    cdef FollowResult result = FOLLOW_STALE
    cdef bint held
    if not _begin_work(f, one):
        return                                        # it is taken off the lists with the next orders
    held = partition_enter(one.partition)             # while it moves to another log folder
    if not held:
        result = _do(one, deed, part)
    partition_leave(one.partition)
    _end_work(f)
    if held:
        _delay_longer(f, link, one)
        return
    one.was_changed = result == FOLLOW_DONE and (deed != DEED_APPEND or part.n > 0)
    if deed == DEED_BEGIN and result == FOLLOW_DONE and one.ask.offset < part.removed_below:
        one.begun_again = True
        _tell(f, NEWS_BEGUN_AGAIN, link, one, 0)      # the log says why
    _on_result(f, link, one, result)
    one.rotten = result == FOLLOW_ROTTEN or (one.rotten and part.n == 0)


cdef FollowResult _drop_torn(Link* link, ReplyPart* part) noexcept nogil:
    """A leader may end a range within a batch, but the first records of an answer begin with a whole one (KIP-74)."""
    cdef BatchHeader header
    cdef size_t whole = 0
    cdef int fault = 0
    cdef bint first = part.n and link.records_in != link.answers
    if part.n:
        link.records_in = link.answers
    while whole < part.n and fault == BATCH_OK:
        fault = batch_parse(part.records + whole, part.n - whole, &header)
        if fault == BATCH_OK:
            whole += <size_t>header.size
    if fault == BATCH_PARTIAL:
        if whole == 0 and first:
            return FOLLOW_ROTTEN
        part.n = whole                                # what is wrong otherwise the log says
    return FOLLOW_DONE


cdef void _on_part(Fetcher* f, Link* link, ReplyPart* part) noexcept nogil:
    cdef Followed* one
    cdef FetchKey key
    cdef Deed deed = DEED_CUT if part.diverged else DEED_APPEND
    memcpy(key.topic_id, link.reply.topic_id, TOPIC_ID_BYTES)
    key.index = part.index
    one = _find(link, &key)
    if one == NULL or one.state != FOLLOWED_ASKED or one.answer == link.answers:
        relaxed_add64(&f.unasked, 1)
        return
    one.answer = link.answers
    if part.error == OFFSET_OUT_OF_RANGE and one.ask.offset < max(part.log_start, part.removed_below):
        deed = DEED_BEGIN
    elif part.error:
        _note_error(f, link, one, NEWS_ERROR, part.error)
        _delay_longer(f, link, one)
        return
    one.leader_high_watermark = part.leader_high_watermark
    one.begun_again = one.begun_again and (deed != DEED_APPEND or one.ask.offset < part.leader_high_watermark)
    link.turn = _place(link, &key) + 1                # what gives records is asked for last, should that matter
    if deed == DEED_APPEND and _drop_torn(link, part) == FOLLOW_ROTTEN:
        _on_result(f, link, one, FOLLOW_ROTTEN)
        one.rotten = True
        return
    _work(f, link, one, deed, part)


cdef void _delay_unanswered(Fetcher* f, Link* link) noexcept nogil:
    """Those that the answer to a request that named all doesn't have: they are in no session."""
    cdef size_t i
    cdef Followed* one
    for i in range(link.followed.size()):
        one = link.followed[i]
        if one.state == FOLLOWED_ASKED and one.answer != link.answers:
            _delay_longer(f, link, one)


cdef void _on_answer(Fetcher* f, Link* link) noexcept nogil:
    """All of it was worked off."""
    cdef int16_t error = link.reply.error
    cdef bint is_session_error = (
        error == FETCH_SESSION_ID_NOT_FOUND
        or error == INVALID_FETCH_SESSION_EPOCH
        or error == FETCH_SESSION_TOPIC_ID_ERROR
    )
    cdef size_t i
    link.state = LINK_IDLE
    if error == 0:
        link.delay_ms = 0
        if link.full:
            _delay_unanswered(f, link)
        if link.reply.session_id != 0 and (link.full or link.session_epoch != 0):     # not renewed meanwhile
            link.session_epoch = 1 if link.session_epoch == INT32_MAX else link.session_epoch + 1
            return
    else:
        relaxed_add64(&f.errors, 1)
        if not is_session_error or link.full:
            _tell(f, NEWS_ERROR, link, NULL, error)
            link.delay_ms = _longer(link.delay_ms)
            link.due_ms = f.now_ms + link.delay_ms
    # No session: the next request names all again.
    for i in range(link.followed.size()):
        if link.followed[i].state == FOLLOWED_ASKED:
            _set_due(link, link.followed[i])
    link_renew(link)


cdef bint _is_this_answer(Link* link) noexcept nogil:
    """Whether its head fits the request that is out."""
    cdef Reply* reply = &link.reply
    if reply.correlation_id != link.correlation_id:
        return False
    link.answers += 1
    if reply.error == 0:
        if not link.full and reply.session_id != 0 and reply.session_id != link.session_id:
            return False
        link.session_id = reply.session_id
    return True


cdef bint _take_bytes(Fetcher* f, Link* link) noexcept nogil:
    """Works off what has come whole. False: no leader answers like that."""
    cdef ReplyEvent event
    cdef ReplyPart part
    cdef size_t taken = 0
    while not atomic_load32(&f.stopping):
        event = reply_next(
            &link.reply, link.buffer + link.start, link.end - link.start, f.batch_bytes, &taken, &part
        )
        if event == REPLY_MORE:
            link.start += taken
            return True
        if event == REPLY_BAD or (event == REPLY_HEAD and not _is_this_answer(link)):
            return False
        if event == REPLY_PARTITION:
            _on_part(f, link, &part)                  # its records are in the buffer
        link.start += taken
        if event == REPLY_END:
            _on_answer(f, link)
            if link.start != link.end:
                return False
            _give_back_buffer(f, link)
            return True
    return True


# --- receiving ----------------------------------------------------------------------------------------------
cdef bint _make_room(Fetcher* f, Link* link) noexcept nogil:
    """For what is wanted, and a little more. The buffer grows as bytes come: a length is only what the leader says."""
    cdef size_t held = link.end - link.start
    cdef size_t wanted = max(link.reply.wanted, held) + AHEAD_BYTES
    cdef size_t capacity
    cdef uint8_t* grown
    if link.start and (held == 0 or link.capacity - link.start < wanted):
        memmove(link.buffer, link.buffer + link.start, held)
        link.start = 0
        link.end = held
    if link.buffer == NULL and f.spare != NULL:
        link.buffer = f.spare
        link.capacity = f.spare_capacity
        f.spare = NULL
        f.spare_capacity = 0
    if link.capacity - link.start >= wanted or link.capacity - link.end > link.capacity // 2 + AHEAD_BYTES:
        return True
    capacity = max(min(wanted, max(2 * link.capacity, <size_t>BUFFER_STEP_BYTES)), <size_t>BUFFER_BYTES_MIN)
    grown = <uint8_t*>realloc(link.buffer, capacity)
    if grown == NULL:
        return False
    link.buffer = grown
    link.capacity = capacity
    return True


cdef size_t _receive_bytes(const Link* link) noexcept nogil:
    """No more than is wanted, and a little: what is left of it when a partition was taken is moved to the front."""
    cdef size_t wanted = max(link.reply.wanted, link.end - link.start) + AHEAD_BYTES
    return min(link.capacity - link.end, link.start + wanted - link.end)


cdef void _receive(Fetcher* f, Link* link) noexcept nogil:
    cdef ssize_t got
    cdef size_t n
    cdef int _i
    for _i in range(TURN_RECEIVES):
        if not _make_room(f, link):
            _end_connection(f, link, KAFKA_STORAGE_ERROR)
            return
        n = _receive_bytes(link)
        got = transport_receive(&link.transport, link.buffer + link.end, n)
        if got < 0 and errno == EINTR:
            continue
        if got < 0 and errno == EAGAIN:
            break
        if got <= 0:
            _end_connection(f, link, NETWORK_EXCEPTION)
            return
        link.end += <size_t>got
        link.heard_ms = f.now_ms
        relaxed_add64(&f.bytes, got)
        if link.state != LINK_WAITING or not _take_bytes(f, link):
            _end_connection(f, link, CORRUPT_MESSAGE)
            return
        if link.state == LINK_IDLE:
            _ask(f, link)
            return
        if <size_t>got < n or atomic_load32(&f.stopping):
            return
    if link.start == link.end and link.state == LINK_IDLE:
        _give_back_buffer(f, link)


cdef void link_on_event(Fetcher* f, Link* link, uint32_t events) noexcept nogil:
    if link.state == LINK_SENDING and events & <uint32_t>EPOLLOUT:
        _send(f, link)
    if link.state != LINK_NONE and events & (<uint32_t>EPOLLIN | <uint32_t>EPOLLHUP | <uint32_t>EPOLLERR):
        _receive(f, link)


cdef void link_on_time(Fetcher* f, Link* link) noexcept nogil:
    cdef int64_t silent_ms
    _end_delays(f, link)
    if link.state == LINK_SENDING or link.state == LINK_WAITING:
        silent_ms = link.heard_ms + link.wait_ms + f.answer_ms
        if silent_ms <= f.now_ms:
            _end_connection(f, link, REQUEST_TIMED_OUT)
        else:
            f.next_ms = min(f.next_ms, silent_ms)
    _ask(f, link)
