/*
 * socket.c
 *		The sockets of libcurl, in one epoll descriptor.
 *
 * A socket stays in the epoll set while its connection is idle, since it will
 * most likely be used again at once; it is taken out if anything happens there
 * meanwhile.  That holds for connections, which are opened and closed here, so
 * that nobody else's descriptor can be taken for one of them.  Descriptors
 * that libcurl makes for itself come and go without our knowing.
 *
 * Most of this is called by libcurl: no memory of PostgreSQL, no errors.
 */
#include "postgres.h"

#include <sys/epoll.h>
#include <unistd.h>

#include "storage/fd.h"

#include "base/guc.h"
#include "bgworker/curl/handle.h"

/* What is known of a descriptor. */
#define SOCKET_IN		1		/* the epoll set waits for input */
#define SOCKET_OUT		2		/* … for output */
#define SOCKET_USED		4		/* libcurl wants to hear of it */
#define SOCKET_OURS		8		/* a connection */

static int	poll_set = -1;		/* the epoll descriptor; stays the same */
static uint8 *sockets = NULL;	/* SOCKET_ bits by descriptor; malloc */
static int	socket_room = 0;
static int	open_sockets = 0;
static int	reserved_sockets = 0;	/* of these, fd.c knows about */

/*
 * SocketsInit makes the epoll descriptor.
 */
void
SocketsInit(void)
{
	if (poll_set >= 0)
		return;
	poll_set = epoll_create1(EPOLL_CLOEXEC);
	if (poll_set < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not create epoll descriptor: %m")));
	ReserveExternalFD();
}

/*
 * SocketsDescriptor returns the epoll descriptor, -1 before it is made.
 */
int
SocketsDescriptor(void)
{
	return poll_set;
}

/*
 * SocketsMost returns how many connections may be open, idle ones included: two
 * fifths of the descriptors that fd.c finds safe for the process, so that by default
 * five channels can have 64 each.  One for which a name is still looked up takes two.
 */
int
SocketsMost(void)
{
	return Max(max_safe_fds * 2 / 5, 1);
}

/*
 * SocketsReserve tells fd.c, which shares the limit of the process, how many
 * sockets there are.  It refuses descriptors to others when a third of all are
 * reserved, so of many sockets it does not hear; it copes when the limit is
 * reached.
 */
void
SocketsReserve(void)
{
	int			wanted = Min(open_sockets, max_safe_fds / 4);

	for (; reserved_sockets < wanted; reserved_sockets++)
		ReserveExternalFD();
	for (; reserved_sockets > wanted; reserved_sockets--)
		ReleaseExternalFD();
}

static bool
MakeSocketRoom(int fd)
{
	int			room = Max(1024, socket_room);
	uint8	   *larger;

	if (fd < socket_room)
		return true;
	while (room <= fd)
		room *= 2;
	larger = realloc(sockets, room);
	if (larger == NULL)
		return false;
	memset(larger + socket_room, 0, room - socket_room);
	sockets = larger;
	socket_room = room;
	return true;
}

/*
 * fd.c keeps files open for later up to its limit, and has heard of a part of our sockets
 * only.  Where the process is at its end, those are closed; they are opened again when needed.
 */
static int
OpenSocket(const struct curl_sockaddr *address)
{
	int			type = address->socktype | SOCK_CLOEXEC;
	int			fd = socket(address->family, type, address->protocol);

	if (fd >= 0 || errno != EMFILE)
		return fd;
	closeAllVfds();
	return socket(address->family, type, address->protocol);
}

/*
 * SocketsOpen opens a socket for an address, unless it is refused.
 */
curl_socket_t
SocketsOpen(void *data, curlsocktype purpose, struct curl_sockaddr *address)
{
	Transfer   *transfer = data;
	int			fd;

	if (GucDeniesAddress(&address->addr))
	{
		AddressToText(&address->addr, transfer->refused);
		return CURL_SOCKET_BAD;
	}
	fd = OpenSocket(address);
	if (fd < 0)
	{
		transfer->shortage = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
		return CURL_SOCKET_BAD;
	}
	if (!MakeSocketRoom(fd))
	{
		close(fd);
		transfer->shortage = true;
		return CURL_SOCKET_BAD;
	}
	sockets[fd] = SOCKET_OURS;
	open_sockets++;
	return fd;
}

/*
 * SocketsClose closes one that SocketsOpen has opened.
 */
int
SocketsClose(void *data, curl_socket_t fd)
{
	sockets[fd] = 0;			/* closing takes it out of the epoll set */
	open_sockets--;
	return close(fd);
}

static void
Unwatch(int fd)
{
	(void) epoll_ctl(poll_set, EPOLL_CTL_DEL, fd, NULL);
	sockets[fd] &= SOCKET_OURS;
}

static int
Watch(int fd, uint8 wanted)
{
	struct epoll_event event = {0};
	uint8		had;

	if (!MakeSocketRoom(fd))
		return -1;
	had = sockets[fd] & (SOCKET_IN | SOCKET_OUT);
	sockets[fd] = (sockets[fd] & SOCKET_OURS) | SOCKET_USED | wanted;

	/* Others may have been closed and opened again without our knowing. */
	if (had == wanted && (sockets[fd] & SOCKET_OURS))
		return 0;
	event.events = ((wanted & SOCKET_IN) ? EPOLLIN : 0) |
		((wanted & SOCKET_OUT) ? EPOLLOUT : 0);
	event.data.fd = fd;
	if (epoll_ctl(poll_set, had ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) == 0)
		return 0;
	return epoll_ctl(poll_set, errno == EEXIST ? EPOLL_CTL_MOD : EPOLL_CTL_ADD,
					 fd, &event);
}

/*
 * SocketsChanged is told what libcurl waits for.
 */
int
SocketsChanged(CURL *easy, curl_socket_t fd, int what, void *data, void *socket_data)
{
	if (what != CURL_POLL_REMOVE)
		return Watch(fd, (what & CURL_POLL_IN ? SOCKET_IN : 0) |
					 (what & CURL_POLL_OUT ? SOCKET_OUT : 0));
	if (fd >= socket_room)
		return 0;
	if (sockets[fd] == (SOCKET_OURS | SOCKET_USED | SOCKET_IN))
		sockets[fd] &= ~SOCKET_USED;	/* it will be used again */
	else
		Unwatch(fd);
	return 0;
}

/*
 * SocketsNotUsed tells whether libcurl is not interested in a descriptor that
 * has become ready; nobody hears of it again then.
 */
bool
SocketsNotUsed(int fd)
{
	if (sockets[fd] & SOCKET_USED)
		return false;
	Unwatch(fd);
	return true;
}
