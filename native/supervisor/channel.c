/* See channel.h. Runs in monitor and supervisor. */
#include "channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

union control {
    struct cmsghdr head;
    char bytes[CMSG_SPACE (CHANNEL_DESCRIPTORS * sizeof (int))];
};

bool channel_send (int socket, const void *packet, size_t size, const int *descriptors, unsigned count)
{
    struct iovec part = { .iov_base = (void *) (uintptr_t) packet, .iov_len = size };
    union control control = { .bytes = { 0 } };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    ssize_t done;

    if (count != 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE (count * sizeof (int));
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN (count * sizeof (int));
        memcpy (CMSG_DATA (&control.head), descriptors, count * sizeof (int));
    }
    while ((done = sendmsg (socket, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR)
        continue;
    return done == (ssize_t) size;
}

ssize_t channel_receive (int socket, void *packet, size_t size, int *descriptors, unsigned *count)
{
    struct iovec part = { .iov_base = packet, .iov_len = size };
    union control control;
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof (control) };
    unsigned room = *count, found = 0;
    ssize_t done;

    *count = 0;
    while ((done = recvmsg (socket, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        continue;
    if (done < 0)
        return -1;
    for (struct cmsghdr *head = CMSG_FIRSTHDR (&message); head != NULL; head = CMSG_NXTHDR (&message, head)) {
        size_t bytes = head->cmsg_len - CMSG_LEN (0);

        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof (int) <= bytes; at += sizeof (int)) {
            int descriptor;

            memcpy (&descriptor, CMSG_DATA (head) + at, sizeof (descriptor));
            if (found < room)
                descriptors[found] = descriptor;
            else
                close (descriptor);
            found++;
        }
    }
    if (found <= room && (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) == 0) {
        *count = found;
        return done;
    }
    for (unsigned i = 0; i < found && i < room; i++)
        close (descriptors[i]);
    errno = EMSGSIZE;
    return -1;
}

bool channel_reply (int socket, int result)
{
    struct channel_head head = { .operation = CHANNEL_REPLY, .result = result };

    return channel_send (socket, &head, sizeof (head), NULL, 0);
}

int channel_address (const char *directory, const char *name, struct sockaddr_un *address)
{
    int place = open (directory, O_PATH | O_DIRECTORY | O_CLOEXEC);

    *address = (struct sockaddr_un) { .sun_family = AF_UNIX };
    if (place >= 0)
        snprintf (address->sun_path, sizeof (address->sun_path), "/proc/self/fd/%d/%s", place, name);
    return place;
}

int channel_connect (const char *directory, const char *name)
{
    struct sockaddr_un address;
    int place = channel_address (directory, name, &address);
    int made = place < 0 ? -1 : socket (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = made < 0 ? -errno : 0;

    if (made >= 0 && (connect (made, (struct sockaddr *) &address, sizeof (address)) != 0 || fcntl (made, F_SETFL, 0) != 0)) {
        error = -errno;
        close (made);
    }
    if (place >= 0)
        close (place);
    return error == 0 ? made : error;
}

bool channel_is_root (int socket)
{
    struct ucred peer;
    socklen_t size = sizeof (peer);

    return getsockopt (socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == 0;
}
