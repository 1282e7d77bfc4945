/*
 * Starts a program many times at one moment, or many times in turn, with and without a preloaded library.
 *
 * usage: herd COUNT LIBRARY PROGRAM [ARGUMENT...]
 *            COUNT processes wait, and execute the program when all are there. LIBRARY "-": none. The variable START_NS
 *            tells each when that was (CLOCK_MONOTONIC); what they print is theirs.
 *        herd -mixed COUNT LIBRARY PROGRAM [ARGUMENT...]
 *            The same, but only every other process has the library.
 *        herd -pairs COUNT LIBRARY PROGRAM [ARGUMENT...]
 *            COUNT times without the library and COUNT times with it, in turn; prints for each pair the nanoseconds from
 *            posix_spawn to the end: "WITHOUT WITH"
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static uint64_t now_ns (void)
{
    struct timespec time;
    clock_gettime (CLOCK_MONOTONIC, &time);
    return (uint64_t) time.tv_sec * 1000000000u + (uint64_t) time.tv_nsec;
}

static _Noreturn void fail (const char *what)
{
    perror (what);
    exit (1);
}

static void preload (const char *library)
{
    if (strcmp (library, "-") == 0 ? unsetenv ("LD_PRELOAD") : setenv ("LD_PRELOAD", library, 1))
        fail ("LD_PRELOAD");
}

static uint64_t spawn_once (char **program)
{
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status;
    posix_spawn_file_actions_init (&actions);
    posix_spawn_file_actions_addopen (&actions, 1, "/dev/null", O_WRONLY, 0);
    uint64_t start = now_ns ();
    if (posix_spawn (&child, program[0], &actions, NULL, program, environ) != 0)
        fail (program[0]);
    if (waitpid (child, &status, 0) != child || status != 0)
        fail ("the program failed");
    uint64_t end = now_ns ();
    posix_spawn_file_actions_destroy (&actions);
    return end - start;
}

static int pairs (unsigned count, const char *library, char **program)
{
    for (unsigned i = 0; i < count; i++) {
        uint64_t without = 0, with = 0;
        for (unsigned turn = 0; turn < 2; turn++) {
            if ((turn ^ i) & 1) {
                preload (library);
                with = spawn_once (program);
            } else {
                preload ("-");
                without = spawn_once (program);
            }
        }
        printf ("%llu %llu\n", (unsigned long long) without, (unsigned long long) with);
    }
    return 0;
}

static int herd (unsigned count, const char *library, int mixed, char **program)
{
    int ready[2], go[2], status, failed = 0;
    if (pipe2 (ready, O_CLOEXEC) || pipe2 (go, O_CLOEXEC))
        fail ("pipe");
    for (unsigned i = 0; i < count; i++) {
        pid_t child = fork ();
        if (child == -1)
            fail ("fork");
        if (child != 0)
            continue;
        char byte = 0, start[32];
        close (go[1]);
        preload (mixed && i % 2 == 0 ? "-" : library);
        if (write (ready[1], &byte, 1) != 1 || read (go[0], &byte, 1) != 0) /* ends when the parent closes it */
            _exit (126);
        snprintf (start, sizeof start, "%llu", (unsigned long long) now_ns ());
        setenv ("START_NS", start, 1);
        execv (program[0], program);
        _exit (127);
    }
    char byte;
    for (unsigned i = 0; i < count; i++)
        if (read (ready[0], &byte, 1) != 1)
            fail ("a process that does not come");
    close (go[1]);
    while (wait (&status) != -1)
        failed |= status != 0;
    return failed;
}

int main (int argc, char **argv)
{
    if (argc >= 5 && strcmp (argv[1], "-pairs") == 0)
        return pairs ((unsigned) atoi (argv[2]), argv[3], argv + 4);
    if (argc >= 5 && strcmp (argv[1], "-mixed") == 0)
        return herd ((unsigned) atoi (argv[2]), argv[3], 1, argv + 4);
    if (argc >= 4)
        return herd ((unsigned) atoi (argv[1]), argv[2], 0, argv + 3);
    fputs ("usage: herd [-pairs|-mixed] COUNT LIBRARY PROGRAM [ARGUMENT...]\n", stderr);
    return 2;
}
