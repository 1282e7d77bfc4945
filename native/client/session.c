// One connection to the agent.
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

// Signals that are forwarded to the worker. Any other signal that ends this program ends the connection.
static const int SIGNALS[] = { SIGTERM, SIGINT, SIGHUP };
enum { SIGNAL_COUNT = sizeof SIGNALS / sizeof SIGNALS[0] };

static int connection = -1;

static void forward_signal (int number)
{
    int before = errno;
    const char packet[2] = { 'K', (char) number };
    send (connection, packet, sizeof packet, MSG_NOSIGNAL | MSG_DONTWAIT);
    errno = before;
}

// Signals that the caller ignores stay ignored.
static void forward_signals (void)
{
    struct sigaction ours = { .sa_handler = forward_signal, .sa_flags = SA_RESTART }, now;
    sigemptyset (&ours.sa_mask);
    for (int i = 0; i < SIGNAL_COUNT; i++)
        if (sigaction (SIGNALS[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaction (SIGNALS[i], &ours, NULL);
}

static int connect_to_agent (void)
{
    const struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = NVC_AGENT_SOCKET };
    connection = socket (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    // Below 3 one of the standard streams is closed: that is Python's to handle.
    if (connection < 3 || connect (connection, (const struct sockaddr *) &address, sizeof address) != 0)
        return -1;
    struct ucred peer;
    socklen_t size = sizeof peer;
    const int yes = 1;
    setsockopt (connection, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes); // for receive; the peer is the agent, not its server
    if (getsockopt (connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != 0)
        return -1;
    return 0;
}

static int send_request (const char *request, size_t length)
{
    int directory = open (".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return -1;
    const int descriptors[REQUEST_DESCRIPTORS] = { 0, 1, 2, directory };
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE (sizeof descriptors)];
    } ancillary;
    memset (&ancillary, 0, sizeof ancillary);
    struct iovec part = { .iov_base = (void *) (uintptr_t) request, .iov_len = length };
    struct msghdr message = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = &ancillary,
        .msg_controllen = sizeof ancillary,
    };
    struct cmsghdr *rights = CMSG_FIRSTHDR (&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN (sizeof descriptors);
    memcpy (CMSG_DATA (rights), descriptors, sizeof descriptors);
    ssize_t sent = sendmsg (connection, &message, MSG_NOSIGNAL);
    close (directory);
    return sent == (ssize_t) length ? 0 : -1;
}

static long long now (void)
{
    struct timespec time;
    clock_gettime (CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

// The next packet, and its sender; its length, 0 at the end of the connection, -1 when none comes in time.
static ssize_t receive (char *packet, size_t size, long long milliseconds, pid_t *sender)
{
    long long end = now () + milliseconds;
    for (;;) {
        union {
            struct cmsghdr header;
            char space[CMSG_SPACE (sizeof (struct ucred))];
        } ancillary;
        struct iovec part = { .iov_base = packet, .iov_len = size };
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary
        };
        ssize_t length = recvmsg (connection, &message, 0);
        const struct cmsghdr *about = length > 0 ? CMSG_FIRSTHDR (&message) : NULL;
        if (about && about->cmsg_level == SOL_SOCKET && about->cmsg_type == SCM_CREDENTIALS) {
            struct ucred credentials;
            memcpy (&credentials, CMSG_DATA (about), sizeof credentials);
            *sender = credentials.pid;
        }
        if (length >= 0)
            return length;
        // ECONNRESET: the server closed with unread data; recv(2) reports that once, before the answer that it had sent.
        if (errno != EAGAIN && errno != EINTR && errno != ECONNRESET)
            return 0;
        struct pollfd wait = { .fd = connection, .events = POLLIN };
        long long left = end - now ();
        if (left <= 0 || poll (&wait, 1, (int) left) == 0)
            return -1;
    }
}

// A server that was stopped has the caller's streams, and an engine waits for their end. With it go its workers; the agent starts another.
static void end_stopped (pid_t server)
{
    char path[64], text[512], *state;
    int pidfd = server > 1 ? (int) syscall (SYS_pidfd_open, server, 0) : -1;
    snprintf (path, sizeof path, "/proc/%d/stat", (int) server);
    int file = pidfd < 0 ? -1 : open (path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read (file, text, sizeof text - 1);
    text[length > 0 ? length : 0] = '\0';
    state = strstr (text, "(nvc:[warm]) ");
    if (state && strchr ("Tt", state[strlen ("(nvc:[warm]) ")]))
        syscall (SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
}

enum outcome session_run (const char *request, size_t length, int timeout, int *status)
{
    pid_t server = 0;
    char packet[1 + sizeof *status];
    if (connect_to_agent () != 0 || send_request (request, length) != 0 ||
        receive (packet, sizeof packet, READY_MILLISECONDS, &server) != 1 || packet[0] != 'R') {
        if (connection >= 0)
            close (connection);
        return BECOME_PYTHON;
    }
    if (send (connection, "G", 1, MSG_NOSIGNAL) != 1) {
        close (connection);
        return BECOME_PYTHON;
    }
    // A signal before this has ended this program, and with it the connection.
    forward_signals ();
    *status = -1;
    ssize_t answer = receive (packet, sizeof packet, (long long) timeout * NVC_ANSWER_MILLISECONDS, &server);
    if (answer < 0) {
        close (connection); // by this the server ends the work
        end_stopped (server);
        return LATE;
    }
    if (answer == sizeof packet && packet[0] == 'S')
        memcpy (status, packet + 1, sizeof *status);
    return answer == 1 && packet[0] == 'N' ? BECOME_PYTHON : ENDED;
}
