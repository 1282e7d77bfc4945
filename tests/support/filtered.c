/*
 * Puts a seccomp filter over itself as an OCI runtime does, gives the filter's listener away, and becomes a program.
 *
 * usage: filtered SOCKET FILTER MESSAGE PROGRAM [ARGUMENT...]
 *        filtered SOCKET FILTER MESSAGE first-answer
 * SOCKET: a listening unix stream socket. FILTER: a file of struct sock_filter. MESSAGE: a file whose bytes go with the
 * descriptor; "PID" in them becomes the process's own. first-answer: no program; a call of the driver at once, and how many
 * microseconds there were from the listener's departure to the call's end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static void fail (const char *what)
{
    perror (what);
    exit (127);
}

static long now_us (void)
{
    struct timespec time;

    clock_gettime (CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000L + time.tv_nsec / 1000;
}

/* RM_ALLOC of a client (nvos.h: NVOS21_PARAMETERS): the driver's first call of every program. */
static int call (int control)
{
    struct {
        unsigned root, parent, object, class_number;
        unsigned long long params;
        unsigned size, status;
    } head = { .status = 0xffff };

    return ioctl (control, _IOC (_IOC_READ | _IOC_WRITE, 'F', 0x2b, sizeof head), &head) == 0 ? (int) head.status : -errno;
}

static size_t load (const char *path, char *room, size_t size)
{
    int file = open (path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read (file, room, size);
    if (length < 0 || (size_t) length == size)
        fail (path);
    close (file);
    return (size_t) length;
}

static int connected (const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int end = socket (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    strncpy (address.sun_path, path, sizeof address.sun_path - 1);
    if (end < 0 || connect (end, (struct sockaddr *) &address, sizeof address) != 0)
        fail (path);
    return end;
}

static void give (int end, const char *text, size_t length, int listener)
{
    union {
        char room[CMSG_SPACE (sizeof listener)];
        struct cmsghdr aligned;
    } control = { 0 };
    struct iovec part = { .iov_base = (void *) text, .iov_len = length };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    message.msg_control = control.room;
    message.msg_controllen = sizeof control.room;
    struct cmsghdr *head = CMSG_FIRSTHDR (&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN (sizeof listener);
    memcpy (CMSG_DATA (head), &listener, sizeof listener);
    if (sendmsg (end, &message, MSG_NOSIGNAL) != (ssize_t) length)
        fail ("sendmsg");
}

int main (int argc, char **argv)
{
    static char filter[65536], message[8192], sent[8192 + 16];
    if (argc < 5) {
        fprintf (stderr, "usage: filtered SOCKET FILTER MESSAGE PROGRAM [ARGUMENT...]\n");
        return 127;
    }
    int end = connected (argv[1]);
    struct sock_fprog program = { .filter = (struct sock_filter *) (void *) filter };
    program.len = (unsigned short) (load (argv[2], filter, sizeof filter) / sizeof (struct sock_filter));
    load (argv[3], message, sizeof message);
    char *place = strstr (message, "PID");
    if (place == NULL)
        snprintf (sent, sizeof sent, "%s", message);
    else
        snprintf (sent, sizeof sent, "%.*s%d%s", (int) (place - message), message, (int) getpid (), place + 3);
    int is_measured = strcmp (argv[4], "first-answer") == 0,
        control = is_measured ? open ("/dev/nvidiactl", O_RDWR | O_CLOEXEC) : -1;
    long listener = syscall (SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (listener < 0)
        fail ("seccomp");
    long since = now_us ();
    give (end, sent, strlen (sent), (int) listener);
    close ((int) listener);
    close (end);
    if (is_measured) {
        int status = call (control);
        printf ("us=%ld status=%d\n", now_us () - since, status);
        return status != 0;
    }
    execv (argv[4], argv + 4);
    fail (argv[4]);
}
