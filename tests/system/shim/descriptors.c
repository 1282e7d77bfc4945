/*
 * Descriptors, children and threads of a program under the preloaded library, with plain calls on the driver's nodes.
 * argv[1]: what to do. Prints "ok" or what was not as it should be; the test looks at the region besides.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                                                \
    do {                                                                                                                           \
        if (!(what)) {                                                                                                             \
            printf ("line %d: %s (errno %d)\n", __LINE__, #what, errno);                                                           \
            exit (1);                                                                                                              \
        }                                                                                                                          \
    } while (0)

struct allocation {
    uint32_t root, parent, object, class_number;
    uint64_t parameters, rights;
    uint32_t size, flags, status, pad;
};
struct release {
    uint32_t root, parent, object, status;
};
struct memory {
    uint32_t words[16];
    uint64_t size;
    uint32_t rest[14];
};

static int control;
static uint32_t client;

static uint32_t make (int descriptor, uint32_t parent, uint32_t object, uint32_t class_number, void *parameters)
{
    struct allocation call = { .root = client, .parent = parent, .object = object, .class_number = class_number };

    call.parameters = (uint64_t) (uintptr_t) parameters;
    if (ioctl (descriptor, _IOWR ('F', 0x2b, struct allocation), &call) != 0)
        return 0xffff;
    if (class_number == 0)
        client = call.object;
    return call.status;
}

static uint32_t take (int descriptor, uint32_t object, uint64_t mebibytes)
{
    struct memory memory = { .size = mebibytes << 20 };

    memory.words[0] = 1; /* owner: any but 0 */
    memory.words[6] = 0x18000000; /* attributes that CUDA asks for */
    memory.words[2] = 0x1c101;
    return make (descriptor, 0x5c000001, object, 0x40, &memory);
}

static uint32_t give (int descriptor, uint32_t object)
{
    struct release call = { .root = client, .parent = 0x5c000001, .object = object };

    return ioctl (descriptor, _IOWR ('F', 0x29, struct release), &call) == 0 ? call.status : 0xffff;
}

static void begin (void)
{
    uint32_t device[14] = { 0 }, subdevice = 0, registered = 0;
    int node = open ("/dev/nvidia0", O_RDWR | O_CLOEXEC);

    control = open ("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    CHECK (control >= 0 && node >= 0);
    registered = (uint32_t) control;
    CHECK (ioctl (node, _IOWR ('F', 0xc9, int), &registered) == 0);
    CHECK (make (control, 0, 0, 0, NULL) == 0);
    CHECK (make (control, client, 0x5c000001, 0x80, device) == 0);
    CHECK (make (control, 0x5c000001, 0x5c000002, 0x2080, &subdevice) == 0);
}

static void duplicates (void)
{
    int one, two;

    CHECK (take (control, 0x5c000010, 600) == 0);
    CHECK (take (control, 0x5c000011, 600) == 0x51);
    one = dup (control);
    two = dup2 (one, 700);
    CHECK (one >= 0 && two == 700);
    CHECK (close (control) == 0);
    CHECK (take (one, 0x5c000011, 600) == 0x51); /* the open file lives, and so does what it has */
    CHECK (close (one) == 0);
    CHECK (take (two, 0x5c000011, 600) == 0x51);
    control = fcntl (two, F_DUPFD_CLOEXEC, 710); /* the library is not told */
    CHECK (close (two) == 0);
    CHECK (take (control, 0x5c000011, 600) == 0x51);
    CHECK (give (control, 0x5c000010) == 0);
    CHECK (take (control, 0x5c000011, 600) == 0);
    CHECK (dup3 (open ("/dev/null", O_RDONLY), control, O_CLOEXEC) == control); /* closes it */
    begin ();
    CHECK (take (control, 0x5c000010, 1000) == 0);
}

static void closing (void)
{
    CHECK (take (control, 0x5c000010, 1000) == 0);
    CHECK (close (control) == 0);
    begin ();
    CHECK (take (control, 0x5c000010, 1000) == 0);
    CHECK (take (control, 0x5c000011, 1) == 0x51);
    errno = 0;
    CHECK (close (-1) == -1 && errno == EBADF);
    CHECK (dup2 (control, control) == control && dup2 (555, 555) == -1 && errno == EBADF);
    CHECK (ioctl (control, TIOCGWINSZ, &errno) == -1);
    for (int descriptor = 3; descriptor < 1024; descriptor++)
        if (descriptor != control)
            close (descriptor);
    CHECK (take (control, 0x5c000011, 1) == 0x51);
    CHECK (give (control, 0x5c000010) == 0);
    CHECK (take (control, 0x5c000011, 1) == 0);
}

/* Places of the table of descriptors, as the kernel says; and the highest descriptor that is open. */
static void table (unsigned *places, int *highest)
{
    char line[128];
    FILE *status = fopen ("/proc/self/status", "re");

    CHECK (status != NULL);
    *places = 0;
    while (fgets (line, sizeof line, status))
        sscanf (line, "FDSize: %u", places);
    fclose (status);
    for (int descriptor = 0; descriptor < 1024; descriptor++)
        if (fcntl (descriptor, F_GETFD) >= 0)
            *highest = descriptor;
}

/* To make it larger takes a process with threads 10 ms and more. */
static void first_memory (void)
{
    unsigned before, after;
    int highest;

    table (&before, &highest);
    CHECK (before > 0 && highest < 20);
    CHECK (take (control, 0x5c000010, 1) == 0);
    table (&after, &highest);
    CHECK (highest > 20); /* out of the way of programs that count from 3 */
    CHECK (after == before);
}

static void child (void)
{
    int status;
    pid_t other;

    CHECK (take (control, 0x5c000010, 600) == 0);
    other = fork ();
    if (other == 0) { /* makes calls of its own: a slot of its own, the same limit */
        begin ();
        CHECK (take (control, 0x5c000010, 600) == 0x51);
        CHECK (take (control, 0x5c000010, 400) == 0);
        _exit (0);
    }
    CHECK (waitpid (other, &status, 0) == other && status == 0);
    CHECK (take (control, 0x5c000011, 400) == 0);
    other = vfork ();
    if (other == 0) {
        close (control); /* the child's table of descriptors, the parent's memory */
        _exit (0);
    }
    CHECK (waitpid (other, &status, 0) == other && status == 0);
    CHECK (take (control, 0x5c000012, 1) == 0x51);
    other = vfork ();
    if (other == 0) /* what it takes lies on its parent's open file, so it counts there */
        _exit (take (control, 0x5c000012, 1) == 0x51 && give (control, 0x5c000011) == 0 ? 0 : 3);
    CHECK (waitpid (other, &status, 0) == other && status == 0);
    CHECK (take (control, 0x5c000011, 400) == 0 && take (control, 0x5c000012, 1) == 0x51);
    other = (pid_t) syscall (SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL); /* a fork that libc does not know of */
    if (other == 0) {
        close (control);
        _exit (0);
    }
    CHECK (waitpid (other, &status, 0) == other && status == 0);
    CHECK (take (control, 0x5c000012, 1) == 0x51);
}

static volatile int stop;

static void *churn (void *argument)
{
    uint32_t object = 0x5c001000 + (uint32_t) (uintptr_t) argument * 0x1000;

    while (!stop) {
        if (take (control, object, 2) == 0 && give (control, object) != 0)
            return (void *) 1;
        object = object % 0x1000 == 0xfff ? object - 0xfff : object + 1;
    }
    return NULL;
}

static void handler (int number)
{
    (void) number;
    close (-1);
    close (dup (0));
}

static void threads (void)
{
    pthread_t all[4];
    void *result;
    int status;

    signal (SIGALRM, handler);
    for (uintptr_t i = 0; i < 4; i++)
        CHECK (pthread_create (&all[i], NULL, churn, (void *) i) == 0);
    for (int i = 0; i < 150; i++) {
        pid_t other = fork ();

        if (other == 0) { /* some thread held the lock, perhaps */
            alarm (20);
            begin ();
            _exit (take (control, 0x5c000010, 1) == 0 ? 0 : 3);
        }
        kill (getpid (), SIGALRM);
        CHECK (waitpid (other, &status, 0) == other);
        CHECK (status == 0);
    }
    stop = 1;
    for (int i = 0; i < 4; i++)
        CHECK (pthread_join (all[i], &result) == 0 && result == NULL);
    CHECK (take (control, 0x5c000010, 1000) == 0);
}

static volatile int handled, harmed;

/* Comes amid a call of its own thread: before its first half, between the halves, or after. */
static void allocating_handler (int number)
{
    uint32_t object = 0x5c010000 + (uint32_t) syscall (SYS_gettid) % 0x10000;
    int before = errno;

    (void) number;
    handled++;
    if (take (control, object, 1) == 0)
        harmed += give (control, object) != 0;
    errno = before;
}

static void handlers (void)
{
    pthread_t all[2];
    void *result;

    signal (SIGUSR1, allocating_handler);
    for (uintptr_t i = 0; i < 2; i++)
        CHECK (pthread_create (&all[i], NULL, churn, (void *) i) == 0);
    for (int i = 0; i < 4000; i++) {
        CHECK (pthread_kill (all[i % 2], SIGUSR1) == 0);
        usleep (100);
    }
    stop = 1;
    for (int i = 0; i < 2; i++)
        CHECK (pthread_join (all[i], &result) == 0 && result == NULL);
    CHECK (handled > 100 && harmed == 0);
    CHECK (take (control, 0x5c000010, 1000) == 0);
}

int main (int argc, char **argv)
{
    alarm (80);
    CHECK (argc == 2);
    begin ();
    if (!strcmp (argv[1], "duplicates"))
        duplicates ();
    else if (!strcmp (argv[1], "closing"))
        closing ();
    else if (!strcmp (argv[1], "table"))
        first_memory ();
    else if (!strcmp (argv[1], "child"))
        child ();
    else if (!strcmp (argv[1], "threads"))
        threads ();
    else if (!strcmp (argv[1], "handlers"))
        handlers ();
    puts ("ok");
    return 0;
}
