/*
 * seen_calls OUT COMMAND...: which requests of NVIDIA's drivers a command and all that it starts make. The kernel stops each
 * (seccomp user notification), this program notes what it is and lets the kernel make it as it is. Into OUT one line for each
 * kind: WHAT NUMBER SIZE COUNT NODE, numbers in hexadecimal; WHAT is escape, class, control, heap, uvm or other; of a policy by which
 * memory is shared (share: of an object, inherited: of all that a client makes) NUMBER is its type, SIZE its access mask.
 * Layouts: nvos.h. Exits as the command does; 125 where it could not begin.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define KINDS 4096
#define REQUEST offsetof (struct seccomp_data, args[1])
#define AT(place) BPF_STMT (BPF_LD | BPF_W | BPF_ABS, place)
#define ANNOUNCE BPF_STMT (BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF)
#define ALLOW BPF_STMT (BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct kind {
    const char *what;
    uint32_t number, size, count;
    char node[32];
} kinds[KINDS];
static unsigned kind_count;

/* Type byte F (nvidia), d (DRM), m (nvidia-modeset); plain numbers, UVM's: all that can be NVIDIA's, and little else. */
static int install (void)
{
    struct sock_filter steps[] = {
        AT (offsetof (struct seccomp_data, nr)),
        BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, __NR_ioctl, 1, 0),
        ALLOW,
        AT (REQUEST),
        BPF_JUMP (BPF_JMP | BPF_JGE | BPF_K, 0x1000, 0, 7),
        BPF_STMT (BPF_ALU | BPF_AND | BPF_K, 0xfffffff0),
        BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, 0x30000000, 5, 0),
        AT (REQUEST),
        BPF_STMT (BPF_ALU | BPF_AND | BPF_K, 0xff00),
        BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, 'F' << 8, 2, 0),
        BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, 'd' << 8, 1, 0),
        BPF_JUMP (BPF_JMP | BPF_JEQ | BPF_K, 'm' << 8, 0, 1),
        ANNOUNCE,
        ALLOW,
    };
    struct sock_fprog program = { sizeof (steps) / sizeof (steps[0]), steps };

    return (int) syscall (SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

static void note (const char *what, uint32_t number, uint32_t size, const char *node)
{
    unsigned i = 0;

    while (i < kind_count && (strcmp (kinds[i].what, what) != 0 || kinds[i].number != number || kinds[i].size != size ||
                              strcmp (kinds[i].node, node) != 0))
        i++;
    if (i == KINDS)
        return;
    if (i == kind_count) {
        kinds[kind_count++] = (struct kind) { .what = what, .number = number, .size = size };
        snprintf (kinds[i].node, sizeof (kinds[i].node), "%s", node);
    }
    kinds[i].count++;
}

static uint32_t word (const uint8_t *head, size_t at)
{
    uint32_t value;

    memcpy (&value, head + at, sizeof (value));
    return value;
}

/* The last part of the node's name, without a GPU's number; "" for what is not NVIDIA's. */
static void name_node (pid_t pid, uint64_t descriptor, char *node, size_t size)
{
    char path[64], target[256];
    ssize_t length;

    snprintf (path, sizeof (path), "/proc/%d/fd/%u", (int) pid, (unsigned) descriptor);
    length = readlink (path, target, sizeof (target) - 1);
    target[length > 0 ? length : 0] = '\0';
    node[0] = '\0';
    if (strncmp (target, "/dev/nvidia", 11) != 0 && strncmp (target, "/dev/dri/", 9) != 0)
        return;
    snprintf (node, size, "%s", strrchr (target, '/') + 1);
    if (strspn (node + 6, "0123456789") == strlen (node + 6))
        node[6] = '\0';
}

static void look (const struct seccomp_notif *call)
{
    uint32_t request = (uint32_t) call->data.args[1], number = request & 0xff, size = request >> 16 & 0x3fff;
    uint8_t head[64] = { 0 };
    struct iovec here = { head, size < sizeof (head) ? size : sizeof (head) };
    struct iovec there = { (void *) (uintptr_t) call->data.args[2], here.iov_len };
    uint32_t policy[3] = { 0 }; /* RS_SHARE_POLICY: target, access mask, type */
    uint64_t params;
    char node[32];

    name_node ((pid_t) call->pid, call->data.args[0], node, sizeof (node));
    if (node[0] == '\0')
        return;
    if (strncmp (node, "nvidia-uvm", 10) == 0) {
        note ("uvm", request, 0, node);
        return;
    }
    if (strcmp (node, "nvidiactl") != 0 && strcmp (node, "nvidia") != 0) {
        note ("other", number, size, node);
        return;
    }
    note ("escape", number, size, node);
    if (process_vm_readv ((pid_t) call->pid, &here, 1, &there, 1, 0) != (ssize_t) here.iov_len)
        return;
    if (number == 0x2a && size == 32)
        note ("control", word (head, 8), word (head, 24), node);
    else if (number == 0x2b && size >= 32)
        note ("class", word (head, 12), word (head, size == 48 ? 32 : 24), node);
    else if (number == 0x27 || number == 0x28)
        note ("class", word (head, 12), 0, node);
    else if (number == 0x4a)
        note ("heap", word (head, 8), 0, node);
    else if (number == 0x35 && size == 24)
        note ("share", word (head, 16) & 0xffff, word (head, 12), node);
    if (number != 0x2a || size != 32 || word (head, 8) != 0xd04)
        return;
    memcpy (&params, head + 16, sizeof (params));
    here = (struct iovec) { policy, sizeof (policy) };
    there = (struct iovec) { (void *) (uintptr_t) params, sizeof (policy) };
    if (process_vm_readv ((pid_t) call->pid, &here, 1, &there, 1, 0) == (ssize_t) sizeof (policy))
        note ("inherited", policy[2] & 0xffff, policy[1], node);
}

static void serve (int listener)
{
    struct pollfd poll_one = { listener, POLLIN, 0 };
    struct seccomp_notif call;
    struct seccomp_notif_resp answer;

    while (poll (&poll_one, 1, -1) > 0 && !(poll_one.revents & POLLHUP)) {
        memset (&call, 0, sizeof (call));
        if (ioctl (listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0)
            continue; /* its thread was interrupted */
        look (&call);
        answer = (struct seccomp_notif_resp) { .id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };
        ioctl (listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}

static int send_listener (int socket, int listener)
{
    char control[CMSG_SPACE (sizeof (int))] = { 0 }, byte = 'x';
    struct iovec data = { &byte, 1 };
    struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof (control) };
    struct cmsghdr *header = CMSG_FIRSTHDR (&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN (sizeof (int));
    memcpy (CMSG_DATA (header), &listener, sizeof (int));
    return sendmsg (socket, &message, 0) == 1 ? 0 : -1;
}

static int receive_listener (int socket)
{
    char control[CMSG_SPACE (sizeof (int))], byte;
    struct iovec data = { &byte, 1 };
    struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof (control) };
    int listener = -1;

    if (recvmsg (socket, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR (&message) != NULL)
        memcpy (&listener, CMSG_DATA (CMSG_FIRSTHDR (&message)), sizeof (int));
    return listener;
}

/* Asked to end: what was seen so far is written. */
static void stop (int number) { (void) number; }

static void run (int socket, char **command)
{
    int listener;

    sigaction (SIGTERM, &(struct sigaction) { .sa_handler = SIG_DFL }, NULL);
    setpgid (0, 0);
    prctl (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    listener = install ();
    if (listener < 0 || send_listener (socket, listener) != 0) {
        perror ("seen_calls: no filter with a listener (one is there already, or the kernel has none)");
        _exit (125);
    }
    close (listener);
    close (socket);
    execvp (command[0], command);
    perror (command[0]);
    _exit (127);
}

int main (int argc, char **argv)
{
    int pair[2], listener, status = 0;
    pid_t child;
    FILE *out;

    if (argc < 3 || (out = fopen (argv[1], "w")) == NULL || socketpair (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        fprintf (stderr, "usage: seen_calls OUT COMMAND...\n");
        return 125;
    }
    sigaction (SIGTERM, &(struct sigaction) { .sa_handler = stop }, NULL);
    child = fork ();
    if (child == 0)
        run (pair[1], argv + 2);
    close (pair[1]);
    listener = child > 0 ? receive_listener (pair[0]) : -1;
    if (listener >= 0)
        serve (listener); /* until the last process with the filter is gone */
    kill (-child, SIGKILL);
    waitpid (child, &status, 0);
    for (unsigned i = 0; i < kind_count; i++)
        fprintf (out, "%s %#x %u %u %s\n", kinds[i].what, kinds[i].number, kinds[i].size, kinds[i].count, kinds[i].node);
    fclose (out);
    return listener < 0 ? 125 : WIFEXITED (status) ? WEXITSTATUS (status) : 128 + WTERMSIG (status);
}
