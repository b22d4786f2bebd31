"""A fetcher thread's connection to one leader, the partitions that it follows there, and their session (KIP-227).

  LINK_NONE -> LINK_IDLE      it names the partitions that are due: new, answered, or delayed until now
            -> LINK_SENDING
            -> LINK_WAITING   it appends, cuts or begins each partition of the answer once its bytes are whole
            -> LINK_IDLE ...

One request is out at a time, and the next one follows once all that the answer brought is in the logs: a fetch's
offset says so. A slow disk therefore holds its leader's bytes back, and the answer's buffer is the bound of memory: it
has the records of one partition, which are `partition_bytes` or one batch that is larger.

The thread keeps what it has asked with for each partition. It names a partition that the session holds only if that has
changed. The session forgets one in error until its delay is over.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from penstock.pyx.linux.gate cimport Gate
from penstock.pyx.linux.posix cimport pthread_cond_t, pthread_mutex_t
from penstock.pyx.log.following cimport FollowerAsk
from penstock.pyx.log.partition cimport LogSet, Partition
from penstock.pyx.net.fetchreply cimport Reply
from penstock.pyx.net.fetchrequest cimport FetchKey, FetchPart, FetchTerms
from penstock.pyx.net.transport cimport Transport
from penstock.pyx.record.frame cimport Writer

cdef enum:
    DELAY_MS_MIN = 10                 # after an error of a partition, or of a connection: doubling
    DELAY_MS_MAX = 1000
    ROTTEN_MS_FIRST = 1000            # after records that can't be believed
    ROTTEN_MS = 30000
    CLIENT_ID_BYTES = 64
    NEWS_MAX = 65536                  # about partitions; more are counted only

cdef enum NewsKind:
    NEWS_DISCONNECTED = 0
    NEWS_WANTED = 1
    NEWS_ROTTEN = 2
    NEWS_REFUSED = 3
    NEWS_ERROR = 4
    NEWS_BEGUN_AGAIN = 5

cdef struct NewsItem:
    NewsKind kind
    int32_t leader
    string topic                      # empty: it is about the connection
    int32_t index
    int16_t error
    int32_t thread

# Of all threads of a `Fetchers`.
cdef struct NewsQueue:
    pthread_mutex_t lock
    int fd                            # eventfd
    vector[NewsItem] items
    int64_t lost

cdef enum FollowedState:
    FOLLOWED_DUE = 0                  # on the list of those that the next request names
    FOLLOWED_ASKED = 1                # the request that is out, or the next one, gets an answer for it
    FOLLOWED_DELAYED = 2              # on the list of those that wait for their time

cdef struct Followed:
    FetchKey key
    int64_t number                    # above 0; no other one has it
    int32_t leader
    Partition* partition              # a reference
    bint removed                      # under the thread's lock: nothing is appended any more
    FollowedState state
    bint in_session                   # the leader's session has it, as `ask` says
    bint was_asked                    # `ask` is true
    FollowerAsk ask
    int64_t answer                    # the number of the last answer that had it
    int64_t due_ms
    int32_t delay_ms
    bint was_changed                  # its last answer had records, or cut the log: it asks for something else now
    bint rotten                       # its last records were
    bint begun_again                  # for what compaction has removed, and it hasn't caught up since
    int16_t error                     # as its last answer had it
    int64_t leader_high_watermark     # as it was told last
    int64_t lag                       # atomic: records below that which this replica lacks

cdef enum LinkState:
    LINK_NONE = 0                     # no connection
    LINK_IDLE = 1                     # no request is out: there is nothing to ask, or it is too early
    LINK_SENDING = 2
    LINK_WAITING = 3

cdef struct Link:
    int32_t leader
    LinkState state
    bint wanted                       # the control plane knows that there is no connection
    Transport transport
    Writer request
    size_t sent
    bint full                         # the request that is out begins a session
    int32_t wait_ms                   # for which it lets the leader wait
    int32_t correlation_id
    Reply reply
    uint8_t* buffer
    size_t start
    size_t end
    size_t capacity
    int32_t session_id
    int32_t session_epoch             # of the next request; 0: it begins a session
    int64_t answers                   # so many, with the one that comes
    int64_t records_in                # the last one that had records
    int64_t heard_ms                  # when bytes last came, or a request went out
    int64_t due_ms                    # no request before that
    int32_t delay_ms
    int64_t used_ms                   # when it last had a partition
    vector[Followed*] followed        # all, by topic id and index
    vector[Followed*] due
    vector[Followed*] delayed
    vector[FetchKey] forgotten        # the session has them until the next request
    int64_t session_size
    size_t turn                       # of `followed`: where a request that names all begins

cdef enum OrderKind:
    ORDER_ADD = 0
    ORDER_REMOVE = 1
    ORDER_CONNECT = 2
    ORDER_DISCONNECT = 3
    ORDER_RENEW = 4                   # the broker epoch is another one

cdef struct Order:
    OrderKind kind
    Followed* followed
    int32_t leader
    int fd

# A fetcher thread.
cdef struct Fetcher:
    int32_t number
    int epoll
    int wake_fd
    int32_t stopping                  # atomic
    Gate* gate                        # of all fetchers
    int64_t broker_epoch              # atomic
    pthread_mutex_t lock
    pthread_cond_t idle               # `working` is another one now
    vector[Order] orders              # under the lock
    int64_t working                   # under the lock: the number of the one whose log it may change now; 0: none
    NewsQueue* news
    LogSet* logs
    # The thread's own from here on.
    FetchTerms terms
    size_t batch_bytes
    int64_t answer_ms
    char client_id[CLIENT_ID_BYTES]
    unordered_map[int32_t, Link*] links
    int64_t now_ms
    int64_t next_ms                   # the earliest time that something waits for
    uint8_t* spare                    # a buffer of a link that has no answer under way
    size_t spare_capacity
    vector[FetchPart] parts           # of the request that is written
    # Atomic.
    int64_t fetches
    int64_t bytes
    int64_t records
    int64_t errors
    int64_t unasked                   # partitions of answers that weren't asked for, or not any more

# The link to a leader, made if there is none; NULL: no memory.
cdef Link* link_of(Fetcher* f, int32_t leader) noexcept nogil
cdef void link_free(Fetcher* f, Link* link) noexcept nogil        # and all of its partitions
cdef void link_add(Fetcher* f, Link* link, Followed* one) noexcept nogil
cdef void link_remove(Fetcher* f, Link* link, Followed* one) noexcept nogil   # and frees it
cdef void link_connect(Fetcher* f, Link* link, int fd) noexcept nogil
cdef void link_disconnect(Fetcher* f, Link* link) noexcept nogil
cdef void link_renew(Link* link) noexcept nogil                   # the next request begins a session
cdef void link_on_event(Fetcher* f, Link* link, uint32_t events) noexcept nogil
# Asks for what is due by now, and ends a connection whose leader is silent; may lower `next_ms`.
cdef void link_on_time(Fetcher* f, Link* link) noexcept nogil
cdef void followed_free(Followed* one) noexcept nogil
cdef void news_add(NewsQueue* news, const NewsItem* item) noexcept nogil
