/*
 * enter SOCKET FILTER PROGRAM [ARGUMENT...]: what an OCI runtime does with a profile that has a listener. Installs the
 * seccomp filter that the file holds (struct sock_filter[]), sends the listener's descriptor over the unix socket, waits
 * for a byte, and becomes the program. Static.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static int fail (const char *what)
{
    perror (what);
    return 99;
}

int main (int argc, char **argv)
{
    static struct sock_filter program[4096];
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    char control[CMSG_SPACE (sizeof (int))] = { 0 }, byte = 'x';
    struct iovec data = { .iov_base = &byte, .iov_len = 1 };
    struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof (control) };
    struct cmsghdr *header = CMSG_FIRSTHDR (&message);
    int file, channel, listener;
    ssize_t size;

    if (argc < 4)
        return 99;
    file = open (argv[2], O_RDONLY | O_CLOEXEC);
    size = file < 0 ? -1 : read (file, program, sizeof (program));
    if (size <= 0 || (size_t) size % sizeof (program[0]) != 0)
        return fail (argv[2]);
    close (file);
    struct sock_fprog filter = { .len = (unsigned short) ((size_t) size / sizeof (program[0])), .filter = program };
    strncpy (address.sun_path, argv[1], sizeof (address.sun_path) - 1);
    channel = socket (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (channel < 0 || connect (channel, (struct sockaddr *) &address, sizeof (address)) < 0)
        return fail (argv[1]);
    prctl (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    listener = (int) syscall (SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
    if (listener < 0)
        return fail ("seccomp");
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN (sizeof (int));
    memcpy (CMSG_DATA (header), &listener, sizeof (int));
    if (sendmsg (channel, &message, 0) != 1 || read (channel, &byte, 1) != 1)
        return fail ("listener");
    close (listener);
    close (channel);
    execv (argv[3], argv + 3);
    return fail (argv[3]);
}
