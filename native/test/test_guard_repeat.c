/*
 * Controls that the driver does once, in the books of a guard that was killed (repeat.c): a process is stopped after
 * each of its instructions while it enters such a call, and what it would have left is read by another guard.
 */
#include "bare_tenant.h"
#include "guard/books.h"
#include "tap.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#define REGISTER 0x503c0104u
#define UNREGISTER 0x503c0105u
#define SPACE 0x503c0102u
#define REQUEST 0xc020462au

struct call {
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t params_size, status;
    uint64_t words[4];
};

/* How far the process came, beside its books. */
enum step { BEFORE, ENTERED, MADE, ANSWERING, DONE };
static volatile enum step *step;

/* Without threads, listeners or a driver; its own process is the only one it has. */
static struct tenant *guard_of (int file)
{
    struct tenant *tenant = bare_tenant (NULL);

    if (books_open (tenant, file) != 0)
        abort ();
    return tenant;
}

static void end (struct tenant *tenant)
{
    for (unsigned i = 0; i < TENANT_PROCESSES; i++)
        if (tenant->processes[i].serial != 0)
            close (tenant->processes[i].pidfd);
    bare_end (tenant);
}

static int new_file (void) { return memfd_create ("books", MFD_CLOEXEC); }

static struct seccomp_notif notification_of (pid_t thread)
{
    return (struct seccomp_notif) { .id = 7, .pid = (uint32_t) thread, .data = { .args = { 3, REQUEST, 0x7000 } } };
}

static struct call call_of (uint32_t command)
{
    return (struct call) { 0xc1d00001, 0x300, command, 0, 0x8000, command == REGISTER ? 32 : command == SPACE ? 16 : 4, 0xdd,
                           { 0x301, (uint64_t) 0x7f << 32, 2 << 20, 0 } };
}

static struct rm_call rm_call_of (struct tenant *tenant, struct call *call)
{
    memcpy (tenant->head, call, 32);
    return (struct rm_call) { .file = tenant->processes[0].serial, .request = REQUEST, .head = tenant->head, .head_size = 32,
                              .params = call->words, .params_size = call->params_size };
}

/* Whether the next guard takes this call of the thread for one that was made. */
static bool knows (struct tenant *tenant, pid_t thread, struct call call)
{
    struct seccomp_notif notification = notification_of (thread);
    struct rm_call made = rm_call_of (tenant, &call);

    return repeat_find (tenant, &notification, &made);
}

/* What notify.c and call.c do, around a driver that answers `status`. */
static void make (struct tenant *tenant, pid_t thread, struct call call, uint32_t status)
{
    struct seccomp_notif notification = notification_of (thread);
    struct rm_call made = rm_call_of (tenant, &call);
    struct answer answer = { .head_size = 32 };
    bool is_again;

    books_received (tenant, &notification);
    *step = ENTERED;
    books_performing (tenant, tenant->processes[0].serial, &made);
    is_again = repeat_find (tenant, &notification, &made);
    *step = MADE;
    memcpy (tenant->head + 28, &status, sizeof (status));
    if (is_again)
        repeat_settle (&made);
    books_performed (tenant, 32);
    *step = ANSWERING;
    books_answering (tenant, false);
    repeat_over (tenant, &notification, &answer);
    *step = DONE;
    books_answering (tenant, true);
}

static int copy_of (const struct tenant *tenant)
{
    size_t size = offsetof (struct books, processes) + sizeof (struct kept_process);
    int file = new_file ();

    if (ftruncate (file, (off_t) (sizeof (struct books) + 4096)) != 0 ||
        pwrite (file, tenant->books, size, 0) != (ssize_t) size)
        abort ();
    return file;
}

/* The guard after this one, were it killed now. */
static struct tenant *successor (const struct tenant *killed)
{
    int before = copy_of (killed), file = new_file ();
    struct tenant *tenant = guard_of (file);
    struct kept_call call = { .phase = PHASE_NONE };

    if (books_restore (tenant, before, &call) != 0)
        abort ();
    resume_begin (tenant, &call, NULL, 0);
    resume_now (tenant);
    close (file);
    close (before);
    return tenant;
}

static struct seen {
    unsigned states, known[DONE + 1], unknown[DONE + 1], torn;
} seen;

/* It was killed here. */
static void look (const struct tenant *tenant, uint32_t command)
{
    struct tenant *next = successor (tenant);
    struct call other = call_of (command);
    bool is_known = knows (next, getpid (), call_of (command));

    seen.states++;
    seen.known[*step] += is_known;
    seen.unknown[*step] += !is_known;
    other.words[0]++;
    seen.torn += knows (next, getpid (), other);
    other = call_of (command);
    other.object++;
    seen.torn += knows (next, getpid (), other) || knows (next, getpid () + 1, call_of (command));
    end (next);
}

/* Every instruction of a process that makes the call, as if it were its last. */
static void walk (struct tenant *tenant, uint32_t command, uint32_t status)
{
    size_t size = offsetof (struct books, processes);
    uint8_t *last = calloc (1, size);
    pid_t child, owner = getpid ();
    int state;

    seen = (struct seen) { .states = 0 };
    *step = BEFORE;
    child = fork ();
    if (child == 0) {
        ptrace (PTRACE_TRACEME, 0, NULL, NULL);
        raise (SIGSTOP);
        make (tenant, owner, call_of (command), status);
        _exit (0);
    }
    while (waitpid (child, &state, 0) == child && WIFSTOPPED (state)) {
        if (memcmp (last, tenant->books, size) != 0) {
            memcpy (last, tenant->books, size);
            look (tenant, command);
        }
        ptrace (PTRACE_SINGLESTEP, child, NULL, NULL);
    }
    free (last);
    printf ("# %u states\n", seen.states);
}

static void killed_anywhere (void)
{
    int file = new_file ();
    struct tenant *tenant = guard_of (file), *next;

    process_restore (tenant, TENANT_PROCESSES, getpid (), process_start_time (getpid ()));
    books_process (tenant, &tenant->processes[0]);
    walk (tenant, REGISTER, 0);
    tap_ok (seen.states > 10 && seen.known[MADE] > 0 && seen.unknown[MADE] == 0,
            "wherever a guard is killed after the driver did it, the next one knows");
    tap_ok (seen.unknown[BEFORE] > 0 && seen.known[BEFORE] == 0, "what was not begun is not taken for made");
    tap_ok (seen.unknown[DONE] > 0 && seen.known[DONE] == 0, "nor what was answered");
    tap_ok (seen.torn == 0, "nor any other call than this one, of this thread");
    walk (tenant, UNREGISTER, 0);
    tap_ok (seen.known[MADE] > 0 && seen.unknown[MADE] + seen.known[DONE] + seen.known[BEFORE] + seen.torn == 0,
            "the same of taking it back");
    walk (tenant, SPACE, 0);
    tap_ok (seen.unknown[MADE] > 0 && seen.known[ENTERED] + seen.known[MADE] == 0,
            "what answers a token is not remembered: it is undone");
    walk (tenant, 0x2080014a, 0);
    tap_ok (seen.unknown[MADE] > 0 && seen.known[ENTERED] + seen.known[MADE] == 0, "nor what may be asked again");
    next = successor (tenant);
    tap_ok (!knows (next, getpid (), call_of (REGISTER)), "nothing is left of calls that were answered");
    end (next);
    end (tenant);
    close (file);
}

/* Entered, and the driver's answer known or not: as it lies there when its guard is killed. */
static struct tenant *died_with (struct tenant *tenant, pid_t thread, uint32_t command, int status)
{
    struct seccomp_notif notification = notification_of (thread);
    struct call call = call_of (command);
    struct rm_call made = rm_call_of (tenant, &call);
    struct tenant *next;

    books_received (tenant, &notification);
    books_performing (tenant, tenant->processes[0].serial, &made);
    if (status >= 0) {
        memcpy (tenant->head + 28, &status, sizeof (status));
        books_performed (tenant, 32);
    }
    next = successor (tenant);
    end (tenant);
    return next;
}

static struct tenant *first (void)
{
    int file = new_file ();
    struct tenant *tenant = guard_of (file);

    process_restore (tenant, TENANT_PROCESSES, getpid (), process_start_time (getpid ()));
    books_process (tenant, &tenant->processes[0]);
    close (file);
    return tenant;
}

static uint32_t settled (uint32_t command, uint32_t status)
{
    struct call call = call_of (command);
    struct rm_call made = { .request = REQUEST, .head = &call, .head_size = 32 };

    call.status = status;
    repeat_settle (&made);
    return call.status;
}

static void generations (void)
{
    pid_t me = getpid ();
    struct tenant *tenant = died_with (first (), me, REGISTER, -1);
    struct seccomp_notif notification = notification_of (me);
    struct answer again = { .error = -EAGAIN }, left = { .keep_on = true };

    tap_ok (knows (tenant, me, call_of (REGISTER)), "a call whose answer nobody knows is remembered");
    repeat_over (tenant, &notification, &again);
    tap_ok (knows (tenant, me, call_of (REGISTER)), "as long as its thread has not made it");
    repeat_over (tenant, &notification, &left);
    tap_ok (!knows (tenant, me, call_of (REGISTER)), "the thread's first call is its only chance");
    tenant = died_with (tenant, me, REGISTER, 0x19);
    tap_ok (!knows (tenant, me, call_of (REGISTER)), "a call that the driver refused was not made");
    tenant = died_with (tenant, me, REGISTER, 0);
    tap_ok (knows (tenant, me, call_of (REGISTER)), "one that it took was");
    for (pid_t other = 1; other <= 3; other++)
        tenant = died_with (tenant, me + other, UNREGISTER, -1);
    tap_ok (knows (tenant, me, call_of (REGISTER)) && knows (tenant, me + 3, call_of (UNREGISTER)),
            "also when the guards after that are killed at once");
    tenant = died_with (tenant, me + 4, UNREGISTER, -1);
    tap_ok (!knows (tenant, me, call_of (REGISTER)) && knows (tenant, me + 1, call_of (UNREGISTER)) &&
                knows (tenant, me + 4, call_of (UNREGISTER)),
            "four are remembered, the newest");
    tenant = died_with (tenant, me + 1, REGISTER, -1);
    tap_ok (!knows (tenant, me + 1, call_of (UNREGISTER)) && knows (tenant, me + 1, call_of (REGISTER)) &&
                knows (tenant, me + 2, call_of (UNREGISTER)),
            "a thread has one");
    tenant->processes[0].dead = true;
    end (tenant);
}

static void refused (void)
{
    struct tenant *tenant = died_with (first (), getpid (), REGISTER, 0), *next;
    struct seccomp_notif notification = notification_of (getpid ());

    /* Its thread comes with another call, which is refused; the guard is killed before it has said so. */
    books_received (tenant, &notification);
    books_answering (tenant, false);
    tap_ok (tenant->books->call.phase == PHASE_RECEIVED, "a call that was not performed is one that can be made again");
    next = successor (tenant);
    tap_ok (knows (next, getpid (), call_of (REGISTER)), "and loses nothing of what came before it");
    end (next);
    tenant->books->again[0].params_size = REPEAT_PARAMS + 1;
    next = successor (tenant);
    tap_ok (!knows (next, getpid (), call_of (REGISTER)), "what cannot be is not believed");
    end (next);
    end (tenant);
}

int main (void)
{
    step = mmap (NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    killed_anywhere ();
    generations ();
    refused ();
    tap_ok (settled (REGISTER, 0x19) == 0 && settled (UNREGISTER, 0x57) == 0, "made already is a success");
    tap_ok (settled (REGISTER, 0x57) == 0x57 && settled (UNREGISTER, 0x19) == 0x19 && settled (REGISTER, 0x1F) == 0x1F &&
                settled (SPACE, 0x19) == 0x19 && settled (0x2080014a, 0x19) == 0x19 && settled (REGISTER, 0) == 0,
            "any other status is the driver's");
    return tap_done ();
}
