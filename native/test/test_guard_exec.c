/* A call whose process executes a program meanwhile: nothing of that program is read, nor written, for the call (guard/memory.c, notify.c). */
#include "bare_tenant.h"
#include "caller.h"
#include "guard/memory.h"
#include "guard/notify.h"
#include "guard/process.h"
#include "guard/replay.h"
#include "privsep_bed.h"
#include "tap.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

/* Where both programs have a page. */
#define PLACE ((uint8_t *) 0x10000000)
#define OWN 0x11 /* what the second one has in it */
#define READY 90 /* descriptors of the child's */
#define GO 91

static struct tenant *tenant;

static void map_place (uint8_t byte)
{
    if (mmap (PLACE, CALLER_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != PLACE)
        _exit (2);
    memset (PLACE, byte, CALLER_PAGE);
}

/* A line is told it, then it becomes the second program, and ends every other thread of its process. */
static void *execute (void *argument)
{
    char byte;

    if (read (GO, &byte, 1) == 1)
        execl ("/proc/self/exe", "test_guard_exec", "executed", (char *) NULL);
    _exit (3);
    return argument;
}

static void be_caller (int told)
{
    pthread_t thread;

    caller_begin (told);
    map_place (0x22);
    if (pthread_create (&thread, NULL, execute, NULL) != 0)
        _exit (4);
    (void) ioctl (0, CALLER_REQUEST, PLACE);
    _exit (5);
}

/* The second program; ends with 0 if its page is as it made it. Then it makes a call of its own. */
static int be_executed (void)
{
    char byte = 0;
    bool is_own = true;

    map_place (OWN);
    if (write (READY, &byte, 1) != 1 || read (GO, &byte, 1) != 1)
        return 6;
    for (unsigned i = 0; i < CALLER_PAGE; i++)
        is_own &= PLACE[i] == OWN;
    (void) ioctl (0, CALLER_REQUEST, PLACE);
    return !is_own;
}

static bool receive (int listener, struct seccomp_notif *notification)
{
    struct pollfd waits = { .fd = listener, .events = POLLIN };

    memset (notification, 0, sizeof (*notification));
    if (poll (&waits, 1, 10000) != 1 || ioctl (listener, SECCOMP_IOCTL_NOTIF_RECV, notification) != 0)
        return false;
    tenant->notified = (struct notified) { .listener = listener, .id = notification->id };
    return true;
}

static void answer (int listener, const struct seccomp_notif *notification)
{
    struct seccomp_notif_resp response = { .id = notification->id };

    (void) ioctl (listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
}

static void *address_of (uint64_t address) { return (void *) (uintptr_t) address; }

int main (int argc, char **argv)
{
    static struct guard guard;
    int told[2], ready[2], go[2], listener, status = -1;
    struct seccomp_notif notification;
    uint8_t bytes[16];
    pid_t child;

    (void) argv;
    if (argc > 1)
        return be_executed ();
    if (pipe (told) != 0 || pipe (ready) != 0 || pipe (go) != 0 || (child = fork ()) < 0)
        return 1;
    if (child == 0) {
        if (dup2 (ready[1], READY) < 0 || dup2 (go[0], GO) < 0)
            _exit (1);
        be_caller (told[1]);
    }
    listener = caller_listener (child, told);
    if (listener < 0) {
        puts (CALLER_SKIP);
        return 0;
    }
    tenant = bare_tenant (&guard);
    privsep_begin (&guard.privsep, privsep_bed (NULL, 0));
    pthread_mutex_lock (&tenant->lock);

    tap_ok (receive (listener, &notification) && (tenant->current = process_of_thread (tenant, child)) != NULL &&
                notify_is_waiting (tenant) && memory_read_head (tenant, child, (uintptr_t) PLACE, 16) && tenant->head[0] == 0x22,
            "a call is read");
    tap_ok (write (go[1], "x", 1) == 1 && read (ready[0], bytes, 1) == 1, "its process executes another program by another thread");
    memset (bytes, 0x33, sizeof (bytes));
    tap_ok (!memory_write (tenant, child, (uintptr_t) PLACE, bytes, sizeof (bytes)), "an answer is not written into that");
    tap_ok (!memory_write (tenant, child, (uintptr_t) PLACE + 64, bytes, sizeof (bytes)), "nor the rest of it");
    tap_ok (!memory_read (tenant, child, (uintptr_t) PLACE + 2048, bytes, sizeof (bytes)),
            "and what the call pointed at is not read from it");
    tap_ok (!notify_is_waiting (tenant), "for the call is over");

    tenant->current = NULL;
    tap_ok (write (go[1], "x", 1) == 1 && receive (listener, &notification) && address_of (notification.data.args[2]) == PLACE,
            "a call of that program");
    tap_ok ((tenant->current = process_of_thread (tenant, child)) != NULL && notify_is_waiting (tenant) &&
                memory_read_head (tenant, child, (uintptr_t) PLACE, 16) && tenant->head[0] == OWN,
            "is read from its own memory");
    memset (bytes, 0x44, sizeof (bytes));
    tap_ok (memory_write (tenant, child, (uintptr_t) PLACE, bytes, sizeof (bytes)), "and is answered there");
    answer (listener, &notification);
    tap_ok (waitpid (child, &status, 0) == child && status == 0, "which had no other answer in it");

    process_forget (tenant, tenant->current);
    tenant->current = NULL;
    pthread_mutex_unlock (&tenant->lock);
    bare_end (tenant);
    return tap_done ();
}
