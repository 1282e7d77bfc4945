/* See player.h. */
#include "player.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char *folder;
static int inbox = -1;

void player_fail (const char *what)
{
    perror (what);
    exit (1);
}

void player_talk_in (const char *path) { folder = path; }

static struct sockaddr_un address_of (unsigned number)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    snprintf (address.sun_path, sizeof (address.sun_path), "%s/task%u", folder, number);
    return address;
}

void player_open_inbox (unsigned number)
{
    struct sockaddr_un address = address_of (number);
    int made = socket (AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (inbox >= 0)
        close (inbox);
    unlink (address.sun_path);
    if (made < 0 || bind (made, (struct sockaddr *) &address, sizeof (address)) != 0)
        player_fail (address.sun_path);
    inbox = fcntl (made, F_DUPFD_CLOEXEC, OWN_DESCRIPTOR);
    close (made);
}

bool player_say (unsigned to, const struct message *message, int file)
{
    struct sockaddr_un address = address_of (to);
    struct iovec part = { (void *) (uintptr_t) message, sizeof (*message) };
    union {
        char room[CMSG_SPACE (sizeof (int))];
        struct cmsghdr aligned;
    } control = { 0 };
    struct msghdr head = { .msg_name = &address, .msg_namelen = sizeof (address), .msg_iov = &part, .msg_iovlen = 1 };

    if (file >= 0) {
        head.msg_control = control.room;
        head.msg_controllen = sizeof (control.room);
        *CMSG_FIRSTHDR (
            &head) = (struct cmsghdr) { .cmsg_len = CMSG_LEN (sizeof (file)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
        memcpy (CMSG_DATA (CMSG_FIRSTHDR (&head)), &file, sizeof (file));
    }
    return sendmsg (inbox, &head, MSG_DONTWAIT) == (ssize_t) sizeof (*message);
}

bool player_hear (struct message *message, int *file)
{
    struct iovec part = { message, sizeof (*message) };
    union {
        char room[CMSG_SPACE (sizeof (int))];
        struct cmsghdr aligned;
    } control;
    struct msghdr head = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof (control.room)
    };

    *file = -1;
    if (recvmsg (inbox, &head, MSG_CMSG_CLOEXEC) != (ssize_t) sizeof (*message))
        return false;
    if (CMSG_FIRSTHDR (&head) != NULL)
        memcpy (file, CMSG_DATA (CMSG_FIRSTHDR (&head)), sizeof (*file));
    return true;
}

int player_inbox (void) { return inbox; }
