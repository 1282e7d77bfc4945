/* Two processes that pass memory to each other: a child forked before CUDA begins, and a socket to it. */
#ifndef NVC_GPU_PEERS_H
#define NVC_GPU_PEERS_H

#include "check.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int peer; /* the other process */

static inline void check_io (bool good, const char *what)
{
    if (good)
        return;
    perror (what);
    exit (1);
}

/* One message: `bytes` of data, and a descriptor when it is not -1. */
static inline void send_message (const void *data, size_t bytes, int descriptor)
{
    union {
        char space[CMSG_SPACE (sizeof (int))];
        struct cmsghdr header;
    } control;
    struct iovec part = { (void *) (uintptr_t) data, bytes };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    memset (&control, 0, sizeof control);
    if (descriptor != -1) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr *header = CMSG_FIRSTHDR (&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN (sizeof (int));
        memcpy (CMSG_DATA (header), &descriptor, sizeof descriptor);
    }
    check_io (sendmsg (peer, &message, 0) == (ssize_t) bytes, "sendmsg");
}

static inline int receive_message (void *data, size_t bytes)
{
    union {
        char space[CMSG_SPACE (sizeof (int))];
        struct cmsghdr header;
    } control;
    struct iovec part = { data, bytes };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    message.msg_control = control.space;
    message.msg_controllen = sizeof control.space;
    check_io (recvmsg (peer, &message, MSG_CMSG_CLOEXEC) == (ssize_t) bytes, "recvmsg");
    struct cmsghdr *header = CMSG_FIRSTHDR (&message);
    int descriptor = -1;
    if (header != NULL && header->cmsg_type == SCM_RIGHTS)
        memcpy (&descriptor, CMSG_DATA (header), sizeof descriptor);
    return descriptor;
}

/* Both sides pass here together. */
static inline void meet (void)
{
    char token = 'm';
    send_message (&token, 1, -1);
    receive_message (&token, 1);
}

/* This process is the owner, a child the user; `prepare` (CUDA begins, and what the driver allocates once) is run by both
 * before either. The exit status. */
static inline int together (void (*prepare) (void), void (*owner) (void), void (*user) (void))
{
    int sockets[2], status;
    check_io (socketpair (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0, "socketpair");
    pid_t child = fork ();
    check_io (child != -1, "fork");
    peer = sockets[child == 0];
    close (sockets[child != 0]);
    prepare ();
    meet (); /* both contexts are there: what they cost is not the scene's */
    if (child == 0) {
        user ();
        exit (0);
    }
    say ("free_start", memory_free ());
    owner ();
    check_io (waitpid (child, &status, 0) == child, "waitpid");
    say ("free_end", memory_free ()); /* and what the other context cost */
    return status != 0;
}

/* A scene of one process: what is free before and after it. */
static inline int alone (void (*prepare) (void), void (*scene) (void))
{
    prepare ();
    say ("free_start", memory_free ());
    scene ();
    MUST (cuCtxSynchronize ());
    say ("free_end", memory_free ());
    return 0;
}

#endif
