/*
 * What the driver's numbers say about memory that UVM keeps: one process allocates through the resource manager, lets UVM map
 * it (UVM duplicates it into a client of the kernel's own) and frees its handle; another one, as a guard would, duplicates the
 * piece first and asks GET_PID_INFO about itself. Static, no library; root on the host: keep_probe [MIB]
 *
 * Lines of key=value: status of each call (0: done), bytes as private/owned/duped of the tenant (t) and of the guard (g), MiB
 * of the heap that are free, nanoseconds of the calls. Numbers and layouts: nv_escape.h, nvos.h, rs_access.h, uvm_ioctl.h.
 */
#define _GNU_SOURCE
#include "keep_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void state (const char *name, const struct client *guard, pid_t tenant)
{
    struct numbers t = numbers_of (guard, tenant), g = numbers_of (guard, getpid ());

    printf ("%-22s t=%llu/%llu/%llu g=%llu/%llu/%llu free=%u\n", name, (unsigned long long) (t.private / MIB),
            (unsigned long long) (t.owned / MIB), (unsigned long long) (t.duped / MIB), (unsigned long long) (g.private / MIB),
            (unsigned long long) (g.owned / MIB), (unsigned long long) (g.duped / MIB), free_mib (guard));
    fflush (stdout);
}

/* The tenant: does what single letters on a socket say, answers each with a status. */
struct order {
    uint32_t what, handle;
    uint64_t size;
};

static uint32_t uvm_begin (const struct client *client, int *uvm, uint8_t uuid[16])
{
    uint32_t gid[67] = { 0, 2 }, space[12] = { 0, 0x48 } /* externally owned, page faults */, status;
    uint64_t initialize[2] = { 0, 0xffff };
    uint8_t gpu[40] = { 0 }, vaspace[32] = { 0 };
    int32_t memory[2] = { -1, -1 };
    int second = open ("/dev/nvidia-uvm", O_RDWR | O_CLOEXEC);
    uint32_t words[4] = { (uint32_t) client->file, client->handle, SPACE, 0xffff };

    *uvm = open ("/dev/nvidia-uvm", O_RDWR | O_CLOEXEC);
    if (*uvm < 0 || ask (client, 0x2080014a, gid, sizeof (gid)) != 0)
        return 0x10001;
    memcpy (uuid, gid + 3, 16);
    status = status_of (*uvm, 0x30000001, initialize, 8);
    memory[0] = *uvm;
    printf ("uvm-initialize=%x mm=%x\n", status, status_of (second, 75, memory, 4)); /* MM_INITIALIZE, on a file of its own */
    memcpy (gpu, uuid, 16);
    memcpy (gpu + 24, words, 8);
    if (status == 0)
        status = status_of (*uvm, 37, gpu, 36);
    printf ("uvm-register=%x\n", status);
    if (status == 0)
        status = make (client, DEVICE, SPACE, 0x90f1, space);
    printf ("uvm-space=%x\n", status);
    fflush (stdout);
    memcpy (vaspace, uuid, 16);
    memcpy (vaspace + 16, words, 12);
    return status != 0 ? status : status_of (*uvm, 25, vaspace, 28);
}

static uint32_t uvm_map (int uvm, const struct client *client, const uint8_t uuid[16], uint32_t handle, uint64_t size)
{
    static uint8_t map[9264];
    uint64_t base = BASE + (uint64_t) (handle - MEMORY) * 4096 * MIB, range[4] = { base, size, 0xffff, 0 }, count = 1;
    uint32_t words[4] = { (uint32_t) client->file, client->handle, handle, 0xffff }, status;

    status = status_of (uvm, 73, range, 16);
    memset (map, 0, sizeof (map));
    memcpy (map, &base, 8);
    memcpy (map + 8, &size, 8);
    memcpy (map + 24, uuid, 16);
    memcpy (map + 9240, &count, 8);
    memcpy (map + 9248, words, 16);
    return status != 0 ? status : status_of (uvm, 33, map, 9260);
}

static void tenant (int socket)
{
    struct client client = opened ();
    struct order order;
    uint8_t uuid[16] = { 0 };
    int uvm = -1;
    uint32_t answer[2] = { rooted (&client), client.handle };

    answer[1] = client.handle;
    furnish (&client);
    if (write (socket, answer, sizeof (answer)) < 0)
        exit (1);
    while (read (socket, &order, sizeof (order)) == sizeof (order)) {
        uint64_t range[3] = { BASE + (uint64_t) (order.handle - MEMORY) * 4096 * MIB, order.size, 0xffff };

        switch (order.what) {
        case 'u':
            answer[0] = uvm_begin (&client, &uvm, uuid);
            break;
        case 'a':
            answer[0] = allocate (&client, order.handle, order.size);
            break;
        case 'm':
            answer[0] = uvm_map (uvm, &client, uuid, order.handle, order.size);
            break;
        case 's':
            answer[0] = share (&client, order.handle, (uint32_t) order.size);
            break;
        case 'f':
            answer[0] = release (&client, order.handle);
            break;
        case 'U':
            answer[0] = status_of (uvm, 34, range, 16);
            break;
        case 'c':
            answer[0] = (uint32_t) close (client.file);
            break;
        case 'k': /* leaves the UVM file to a child and ends */
            if (fork () == 0) {
                close (client.file);
                close (client.node);
                for (char byte; read (socket, &byte, 1) > 0;)
                    continue;
            }
            _exit (0);
        }
        if (write (socket, answer, sizeof (answer)) < 0)
            exit (1);
    }
    exit (0);
}

static uint32_t tell (const char *name, int socket, uint32_t what, uint32_t handle, uint64_t size)
{
    struct order order = { what, handle, size };
    uint32_t answer[2] = { 0x20000, 0 };

    if (write (socket, &order, sizeof (order)) != sizeof (order) || read (socket, answer, sizeof (answer)) != sizeof (answer))
        answer[0] = 0x20000;
    if (name != NULL)
        printf ("%s=%x\n", name, answer[0]);
    return answer[0];
}

static pid_t begin_tenant (int *socket, uint32_t *client)
{
    uint32_t answer[2];
    int pair[2];
    pid_t child;

    if (socketpair (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        exit (1);
    fflush (stdout);
    child = fork ();
    if (child == 0) {
        close (pair[0]);
        tenant (pair[1]);
    }
    close (pair[1]);
    *socket = pair[0];
    if (read (pair[0], answer, sizeof (answer)) != sizeof (answer) || answer[0] != 0)
        exit (1);
    *client = answer[1];
    return child;
}

/* A client that belongs to another process: that process need not live on, the open file is ours too. */
static struct client keeper_opened (void)
{
    struct client client = opened ();
    int pair[2];

    if (pipe (pair) != 0)
        exit (1);
    fflush (stdout);
    pid_t child = fork ();
    if (child == 0) {
        uint32_t status = rooted (&client);

        furnish (&client); /* the driver asserts that the maker of a client makes its devices */
        _exit (status != 0 || write (pair[1], &client.handle, 4) != 4);
    }
    if (read (pair[0], &client.handle, 4) != 4)
        client.handle = 0;
    waitpid (child, NULL, 0);
    printf ("keeper=%d client=%x\n", child, client.handle);
    return client;
}

static void measure (const char *name, uint64_t began)
{
    printf ("ns %s=%llu\n", name, (unsigned long long) ((now () - began) / ROUNDS));
}

static void time_calls (const struct client *guard, int socket, uint32_t theirs, pid_t pid, uint64_t size)
{
    uint64_t began = now ();

    for (int i = 0; i < ROUNDS; i++) {
        allocate (guard, COPY + 1, size);
        release (guard, COPY + 1);
    }
    measure ("alloc+free", began);
    tell ("timed-alloc", socket, 'a', MEMORY + 9, size);
    tell ("timed-share", socket, 's', MEMORY + 9, guard->handle);
    began = now ();
    for (int i = 0; i < ROUNDS; i++) {
        duplicate (guard, COPY + 1, theirs, MEMORY + 9);
        release (guard, COPY + 1);
    }
    measure ("dup+free", began);
    began = now ();
    for (int i = 0; i < ROUNDS; i++)
        numbers_of (guard, getpid ());
    measure ("ask-self", began);
    began = now ();
    for (int i = 0; i < ROUNDS; i++)
        numbers_of (guard, pid);
    measure ("ask-tenant", began);
    began = now ();
    for (int i = 0; i < ROUNDS; i++)
        share (guard, guard->handle, guard->handle);
    measure ("share", began);
    tell (NULL, socket, 'f', MEMORY + 9, 0);
    began = now ();
    for (int i = 0; i < ROUNDS; i++)
        syscall (SYS_kcmp, getpid (), pid, KCMP_FILE, guard->file, 0);
    measure ("kcmp", began);
}

/* How far a piece got: mapped or not; then the guard's look at its FREE. */
static void kept_after_free (const struct client *guard, const struct client *keeper, uint64_t size)
{
    int socket;
    uint32_t theirs;
    pid_t pid = begin_tenant (&socket, &theirs);

    state ("begin", guard, pid);
    tell ("uvm", socket, 'u', 0, 0);
    tell ("alloc", socket, 'a', MEMORY, size);
    state ("allocated", guard, pid);
    tell ("map", socket, 'm', MEMORY, size);
    state ("mapped", guard, pid);
    printf ("dup-unshared=%x\n", duplicate (guard, COPY, theirs, MEMORY));
    tell ("share-object", socket, 's', MEMORY, guard->handle);
    printf ("dup=%x\n", duplicate (guard, COPY, theirs, MEMORY));
    state ("duplicated", guard, pid);
    tell ("free", socket, 'f', MEMORY, 0);
    state ("freed", guard, pid);
    printf ("share-with-keeper=%x\n", share (guard, COPY, keeper->handle));
    printf ("dup-to-keeper=%x\n", duplicate (keeper, COPY, guard->handle, COPY));
    printf ("free-copy=%x\n", release (guard, COPY));
    state ("in-keeper", guard, pid);
    tell ("uvm-free", socket, 'U', MEMORY, size);
    state ("uvm-freed", guard, pid);
    printf ("share-with-guard=%x\n", share (keeper, COPY, guard->handle));
    printf ("dup-from-keeper=%x\n", duplicate (guard, COPY, keeper->handle, COPY));
    printf ("free-in-keeper=%x\n", release (keeper, COPY));
    state ("in-guard", guard, pid);
    printf ("free-copy=%x\n", release (guard, COPY));
    state ("gone", guard, pid);

    /* an honest end: UVM lets go first; shared by the client's own policy this time */
    tell ("share-client", socket, 's', theirs, guard->handle);
    tell ("alloc", socket, 'a', MEMORY + 1, size);
    tell ("map", socket, 'm', MEMORY + 1, size);
    tell ("uvm-free", socket, 'U', MEMORY + 1, size);
    printf ("dup=%x\n", duplicate (guard, COPY, theirs, MEMORY + 1));
    tell ("free", socket, 'f', MEMORY + 1, 0);
    state ("honest-freed", guard, pid);
    printf ("free-copy=%x\n", release (guard, COPY));
    /* without a guard: what the driver still says */
    tell ("alloc", socket, 'a', MEMORY + 2, size);
    tell ("map", socket, 'm', MEMORY + 2, size);
    tell ("free", socket, 'f', MEMORY + 2, 0);
    state ("kept-unseen", guard, pid);
    tell ("uvm-free", socket, 'U', MEMORY + 2, size);
    state ("unkept", guard, pid);
    time_calls (guard, socket, theirs, pid, 4 * MIB);
    close (socket);
    waitpid (pid, NULL, 0);
    state ("ended", guard, pid);
}

/* The process ends, its UVM file lives on in a child; a copy of its nvidiactl file is held as a guard would, or not. */
static void kept_after_death (const struct client *guard, uint64_t size, int with_copy)
{
    struct client copy = { -1, -1, 0 };
    int socket, pidfd;
    uint32_t theirs;
    pid_t pid = begin_tenant (&socket, &theirs);
    struct order order = { 'k', 0, 0 };

    printf ("death with-copy=%d\n", with_copy);
    tell ("uvm", socket, 'u', 0, 0);
    tell ("alloc", socket, 'a', MEMORY, size);
    tell ("map", socket, 'm', MEMORY, size);
    pidfd = (int) syscall (434, pid, 0);
    for (int file = 3; with_copy && file < 64 && copy.file < 0; file++) { /* the one that is ours to find: by its client */
        copy.file = (int) syscall (438, pidfd, file, 0);
        copy.handle = theirs;
        if (copy.file >= 0 && share (&copy, theirs, guard->handle) != 0) {
            close (copy.file);
            copy.file = -1;
        }
    }
    if (with_copy)
        printf ("copied=%d dup=%x\n", copy.file >= 0, duplicate (guard, COPY, theirs, MEMORY));
    state ("alive", guard, pid);
    if (write (socket, &order, sizeof (order)) < 0)
        exit (1);
    waitpid (pid, NULL, 0);
    usleep (300000);
    state ("dead, UVM file held", guard, pid);
    if (copy.file >= 0)
        close (copy.file);
    state ("copy closed", guard, pid);
    close (socket);
    close (pidfd);
    usleep (500000);
    state ("UVM file closed", guard, pid);
    if (with_copy)
        printf ("free-copy=%x\n", release (guard, COPY));
    state ("end", guard, pid);
}

int main (int argc, char **argv)
{
    uint64_t size = (argc > 1 ? (uint64_t) atoi (argv[1]) : 1024) * MIB;
    struct client guard = opened (), keeper;

    printf ("guard=%x\n", rooted (&guard));
    furnish (&guard);
    keeper = keeper_opened ();
    kept_after_free (&guard, &keeper, size);
    kept_after_death (&guard, size, 0);
    kept_after_death (&guard, size, 1);
    return 0;
}
