/* Puts more descriptors in flight than RLIMIT_NOFILE, as uid 0 without capabilities, and waits. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
int main (int argc, char **argv)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct data[2] = { { 0 }, { 0 } };
    long sent = 0, most = argc > 1 ? atol (argv[1]) : 1L << 40;
    int other = 1 << 30;
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE (253 * sizeof (int))];
    } control;
    struct rlimit limit;
    getrlimit (RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit (RLIMIT_NOFILE, &limit);
    syscall (SYS_capset, &header, data);
    for (int pairs = 0; pairs < 400 && sent < most; pairs++) {
        int pair[2];
        if (socketpair (AF_UNIX, SOCK_DGRAM, 0, pair))
            break;
        for (; sent < most;) {
            char byte = 0;
            struct iovec part = { &byte, 1 };
            struct msghdr message = {
                .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof (control)
            };
            control.head = (struct cmsghdr) { .cmsg_level = SOL_SOCKET,
                                              .cmsg_type = SCM_RIGHTS,
                                              .cmsg_len = CMSG_LEN (253 * sizeof (int)) };
            for (int i = 0; i < 253; i++)
                ((int *) CMSG_DATA (&control.head))[i] = 0;
            if (sendmsg (pair[0], &message, MSG_DONTWAIT) < 0) {
                other = errno;
                break;
            }
            sent += 253;
        }
        if (other == ETOOMANYREFS)
            break;
    }
    printf ("in flight %ld limit %ld: %s\n", sent, (long) limit.rlim_cur, strerror (other));
    fflush (stdout);
    pause ();
}
