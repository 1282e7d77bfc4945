/*
 * Things that programs do and a preloaded library may not notice, each printed so that two runs can be compared.
 *
 * usage: habits state | threads | signals | altstack | vfork | storm | daemon | dlopen | descriptors | uid
 * Built by tests/system/test_harmless.py dynamic, static, static-pie and with musl.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

extern char **environ;

static _Noreturn void fail (const char *what)
{
    printf ("%s: %s\n", what, strerror (errno));
    exit (1);
}

static void print_descriptors (void)
{
    char target[256], path[300];
    DIR *directory = opendir ("/proc/self/fd");
    if (directory == NULL)
        fail ("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir (directory)) != NULL;) {
        int number = atoi (entry->d_name);
        if (entry->d_name[0] == '.' || number == dirfd (directory))
            continue;
        snprintf (path, sizeof path, "/proc/self/fd/%d", number);
        ssize_t length = readlink (path, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = 0;
        target[strcspn (target, "[")] = 0; /* the number of a pipe differs from run to run */
        printf ("descriptor %d %s flags %x %x\n", number, target, (unsigned) fcntl (number, F_GETFD),
                (unsigned) fcntl (number, F_GETFL));
    }
    closedir (directory);
}

static void print_status (void)
{
    static const char *const wanted[] = { "Umask:",  "Uid:",    "Gid:",    "Groups:", "Threads:",    "ShdPnd:",
                                          "SigPnd:", "SigBlk:", "SigIgn:", "SigCgt:", "NoNewPrivs:", "CapEff:",
                                          "CapPrm:", "CapInh:", "CapAmb:", "Seccomp:" };
    char line[512];
    FILE *status = fopen ("/proc/self/status", "re");
    if (status == NULL)
        fail ("/proc/self/status");
    while (fgets (line, sizeof line, status) != NULL)
        for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
            if (strncmp (line, wanted[i], strlen (wanted[i])) == 0)
                fputs (line, stdout);
    fclose (status);
}

static void print_memory (void)
{
    /* Nothing writable and executable, nothing shared with another process. */
    char line[512], rights[8];
    FILE *maps = fopen ("/proc/self/maps", "re");
    unsigned odd = 0;
    if (maps == NULL)
        fail ("/proc/self/maps");
    while (fgets (line, sizeof line, maps) != NULL)
        if (sscanf (line, "%*s %7s", rights) == 1)
            odd += (strchr (rights, 'w') != NULL && strchr (rights, 'x') != NULL) || rights[3] == 's';
    fclose (maps);
    printf ("odd mappings %u\n", odd);
}

static int state (void)
{
    int at_start = errno;
    char directory[512];

    printf ("errno %d\n", at_start);
    print_status ();
    for (int number = 1; number < 65; number++) {
        struct sigaction action;
        if (sigaction (number, NULL, &action) == 0 && action.sa_handler != SIG_DFL)
            printf ("signal %d %s\n", number, action.sa_handler == SIG_IGN ? "ignored" : "caught");
    }

    printf ("locale %s decimal %s\n", setlocale (LC_ALL, NULL), localeconv ()->decimal_point);
    for (char **variable = environ; *variable != NULL; variable++)
        printf ("environment %s\n", *variable);
    print_descriptors ();
    print_memory ();
    for (int limit = 0; limit < RLIM_NLIMITS; limit++) {
        struct rlimit now;
        if (getrlimit (limit, &now) == 0)
            printf ("limit %d %lld %lld\n", limit, (long long) now.rlim_cur, (long long) now.rlim_max);
    }
    printf ("directory %s\n", getcwd (directory, sizeof directory));
    printf ("dumpable %d name ", prctl (PR_GET_DUMPABLE));
    char name[17] = "";
    prctl (PR_GET_NAME, name);
    printf ("%s nice %d secure %lu\n", name, getpriority (PRIO_PROCESS, 0), getauxval (AT_SECURE));
    printf ("brk moves %d\n", sbrk (0) == sbrk (0) ? 0 : 1);
    return 0;
}

#define TURNS 300
#define THREADS 16

static void *count_up (void *argument)
{
    unsigned *number = argument;
    for (unsigned i = 0; i < TURNS; i++) {
        void *memory = mmap (NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        int copy = dup (0);
        *(char *) memory = 1;
        *number += memory != MAP_FAILED && copy >= 0;
        munmap (memory, 65536);
        close (copy);
    }
    return NULL;
}

static int threads (void)
{
    pthread_t thread[THREADS];
    unsigned counts[THREADS] = { 0 }, sum = 0;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create (&thread[i], NULL, count_up, &counts[i]) != 0)
            fail ("pthread_create");
    for (int i = 0; i < THREADS; i++) {
        pthread_join (thread[i], NULL);
        sum += counts[i];
    }
    printf ("threads %u\n", sum);
    print_descriptors ();
    return 0;
}

static volatile sig_atomic_t caught, on_other_stack;
static char *other_stack;

static void handle (int number)
{
    char here;
    int copy = dup (1); /* all that is wrapped may be called from a handler */
    void *memory = mmap (NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int available;
    ioctl (copy, FIONREAD, &available);
    munmap (memory, 4096);
    close (copy);
    caught += number;
    if (other_stack != NULL && &here >= other_stack && &here < other_stack + SIGSTKSZ)
        on_other_stack++;
}

static int signals (int with_stack)
{
    struct sigaction action = { .sa_handler = handle, .sa_flags = SA_RESTART };
    struct itimerspec often = { { 0, 100000 }, { 0, 100000 } };
    timer_t timer;
    if (with_stack) {
        stack_t stack = { .ss_size = (size_t) SIGSTKSZ };
        other_stack = stack.ss_sp = malloc ((size_t) SIGSTKSZ);
        if (sigaltstack (&stack, NULL) != 0)
            fail ("sigaltstack");
        action.sa_flags |= SA_ONSTACK;
    }
    sigaction (SIGUSR1, &action, NULL);
    sigaction (SIGALRM, &action, NULL);
    for (int i = 0; i < 100; i++)
        raise (SIGUSR1);
    printf ("caught %d\n", caught / SIGUSR1);
    if (timer_create (CLOCK_MONOTONIC, NULL, &timer) != 0 || timer_settime (timer, 0, &often, NULL) != 0)
        fail ("timer");
    unsigned number = 0;
    count_up (&number);
    timer_delete (timer);
    printf ("counted %u, on the other stack %d\n", number, on_other_stack >= 100);
    signal (SIGPIPE, SIG_IGN);
    print_status ();
    return 0;
}

static int exit_of_vforked (void)
{
    int status;
    pid_t child = vfork ();
    if (child == 0) {
        execl ("/bin/sh", "sh", "-c", "exit 7", (char *) NULL);
        _exit (99);
    }
    return child != -1 && waitpid (child, &status, 0) == child ? WEXITSTATUS (status) : -1;
}

static int vfork_and_exec (void)
{
    for (int i = 0; i < 20; i++)
        if (exit_of_vforked () != 7)
            fail ("vfork");
    puts ("vfork 20");
    fflush (stdout);
    return system ("echo from system; exit 3") >> 8;
}

static int storm (void)
{
    unsigned good = 0;
    fflush (stdout);
    for (int i = 0; i < 200; i++) {
        pid_t child = fork ();
        if (child == 0) {
            unsigned number = 0;
            close (0); /* what was copied is the child's own */
            void *memory = mmap (NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            number += memory != MAP_FAILED;
            _exit ((int) number);
        }
        good += child > 0;
    }
    for (int status; wait (&status) > 0;)
        good += WEXITSTATUS (status) == 1;
    printf ("storm %u\n", good);
    return 0;
}

/* Closes every descriptor, also those that it has not, and goes on in the background. */
static int daemonise (void)
{
    int results[2], status;
    char line[128] = "";
    if (pipe (results) != 0 || dup2 (results[1], 100) != 100)
        fail ("pipe");
    fflush (stdout);
    pid_t child = fork ();
    if (child == 0) {
        if (fork () != 0)
            _exit (0);
        setsid ();
        umask (077);
        for (int number = 0; number < 4096; number++)
            if (number != 100)
                close (number);
        int first = open ("/dev/null", O_RDWR), second = dup (first), third = dup (first);
        snprintf (line, sizeof line, "descriptors %d %d %d, umask %o\n", first, second, third, (unsigned) umask (022));
        _exit (write (100, line, strlen (line)) < 0);
    }
    close (results[1]);
    close (100);
    waitpid (child, &status, 0);
    if (read (results[0], line, sizeof line - 1) <= 0)
        fail ("the daemon said nothing");
    fputs (line, stdout);
    return 0;
}

static int use_dlopen (void)
{
#ifdef WITHOUT_DLOPEN
    puts ("no dlopen");
    return 0;
#else
    static const char *const names[] = { "ioctl", "mmap", "close", "dup2", "munmap", "printf", "getenv", "cos" };
    void *library = dlopen ("libm.so.6", RTLD_NOW | RTLD_LOCAL);
    void *deep = dlopen ("libm.so.6", RTLD_NOW | RTLD_DEEPBIND);
    printf ("libm %d %d, libcuda %d\n", library != NULL, deep != NULL, dlopen ("libcuda.so.1", RTLD_NOW) != NULL);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        printf ("%s %d\n", names[i], dlsym (RTLD_DEFAULT, names[i]) != NULL || dlsym (library, names[i]) != NULL);
    printf ("nothing %d\n", dlsym (RTLD_DEFAULT, "a_name_that_nobody_has") != NULL);
    puts (dlerror ());
    return dlclose (library) + dlclose (deep);
#endif
}

static void report (const char *call, long result) { printf ("%s %ld %s\n", call, result, result == -1 ? strerror (errno) : ""); }

static int descriptors (void)
{
    int number = -1;
    struct winsize size;
    int ends[2];
    report ("close(-1)", close (-1));
    report ("dup(-1)", dup (-1));
    report ("dup2(-1,5)", dup2 (number, 5));
    report ("dup3(1,1)", dup3 (1, 1, 0));
    report ("ioctl(-1)", ioctl (number, TIOCGWINSZ, &size));
    report ("munmap", munmap ((void *) 1, 4096));
    report ("mmap", mmap (NULL, 0, PROT_READ, MAP_PRIVATE, -1, 0) == MAP_FAILED);
    if (pipe2 (ends, O_CLOEXEC) != 0 || write (ends[1], "abc", 3) != 3)
        fail ("pipe2");
    report ("ioctl(FIONREAD)", ioctl (ends[0], FIONREAD, &number));
    printf ("available %d\n", number);
    /* The numbers of the driver's own calls, on a descriptor that is not the driver's. */
    report ("ioctl('F')", ioctl (ends[0], 0xc0304627u, &size));
    printf ("dup2 %d dup3 %d\n", dup2 (ends[0], 40), dup3 (ends[0], 41, O_CLOEXEC));
    print_descriptors ();
    return 0;
}

static int print_uid (void)
{
    printf ("uid %u effective %u secure %lu\n", getuid (), geteuid (), getauxval (AT_SECURE));
    print_status ();
    return 0;
}

int main (int argc, char **argv)
{
    const char *habit = argc == 2 ? argv[1] : "";
    setvbuf (stdout, NULL, _IOLBF, 0);
    if (strcmp (habit, "state") == 0)
        return state ();
    if (strcmp (habit, "threads") == 0)
        return threads ();
    if (strcmp (habit, "signals") == 0)
        return signals (0);
    if (strcmp (habit, "altstack") == 0)
        return signals (1);
    if (strcmp (habit, "vfork") == 0)
        return vfork_and_exec ();
    if (strcmp (habit, "storm") == 0)
        return storm ();
    if (strcmp (habit, "daemon") == 0)
        return daemonise ();
    if (strcmp (habit, "dlopen") == 0)
        return use_dlopen ();
    if (strcmp (habit, "descriptors") == 0)
        return descriptors ();
    if (strcmp (habit, "uid") == 0)
        return print_uid ();
    return 2;
}
