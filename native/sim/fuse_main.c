/* nvc-sim-manager: serves the device nodes of a simulated machine. The main thread mounts, waits for a signal or for
 * the connection's end, and unmounts. */
#include "fuse.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
    "usage: nvc-sim-manager [--ready-fd NUMBER] [--die-with-parent] [--manual-clock] MACHINE MOUNTPOINT\n"
    "\n"
    "Serves the device nodes of a simulated machine as files in the directory MOUNTPOINT, until ended or unmounted.\n"
    "MACHINE: the text that `nvc-py sim create DIR` puts into DIR/etc/nvc-sim/machine. Needs root and /dev/fuse.\n"
    "NUMBER: a descriptor that gets one byte, and is closed, when the files are there.\n";

#define NICE (-20)

static struct machine machine;

static bool read_machine (const char *path)
{
    static char text[MACHINE_TEXT_LIMIT + 1];
    char problem[160];
    size_t size;
    FILE *file = fopen (path, "re");

    if (file == NULL) {
        fprintf (stderr, "nvc-sim-manager: %s: %s\n", path, strerror (errno));
        return false;
    }
    size = fread (text, 1, sizeof (text), file);
    fclose (file);
    if (machine_parse (text, size, &machine, problem, sizeof (problem)))
        return true;
    fprintf (stderr, "nvc-sim-manager: %s: %s\n", path, problem);
    return false;
}

static void add_node (struct server *server, enum manager_node kind, uint32_t gpu, const char *name)
{
    struct node *node = &server->nodes[server->node_count++];

    node->kind = kind;
    node->gpu = gpu;
    snprintf (node->name, sizeof (node->name), "%s", name);
}

static void add_nodes (struct server *server)
{
    add_node (server, MANAGER_CONTROL, 0, "nvidiactl");
    add_node (server, MANAGER_UVM, 0, "nvidia-uvm");
    add_node (server, MANAGER_UVM_TOOLS, 0, "nvidia-uvm-tools");
    for (uint32_t i = 0; i < machine.gpu_count && i < MANAGER_MAX_GPUS; i++) {
        char name[24];
        snprintf (name, sizeof (name), "nvidia%u", machine.gpus[i].minor);
        add_node (server, MANAGER_GPU, i, name);
    }
}

/* The server ends by a signal; the thread below turns the connection's end into one. */
static void *watch (void *argument)
{
    struct server *server = argument;

    pthread_mutex_lock (&server->jobs_lock);
    while (!server->ended)
        pthread_cond_wait (&server->started, &server->jobs_lock);
    pthread_mutex_unlock (&server->jobs_lock);
    kill (getpid (), SIGTERM);
    return NULL;
}

/* Waits for FUSE_INIT, then reads the filesystem's device number. */
static bool greeted (struct server *server)
{
    struct stat status;

    pthread_mutex_lock (&server->jobs_lock);
    while (!server->greeted && !server->ended)
        pthread_cond_wait (&server->started, &server->jobs_lock);
    bool good = !server->ended;
    pthread_mutex_unlock (&server->jobs_lock);
    if (!good || stat (server->mountpoint, &status) < 0)
        return false;
    server->filesystem = status.st_dev;
    return true;
}

static int run (struct server *server, int ready)
{
    sigset_t ends;
    pthread_t watcher;
    int which;

    sigemptyset (&ends);
    sigaddset (&ends, SIGTERM);
    sigaddset (&ends, SIGINT);
    sigaddset (&ends, SIGHUP);
    pthread_sigmask (SIG_BLOCK, &ends, NULL);
    if (server_mount (server) < 0)
        return 1;
    if (!server_start (server) || !greeted (server) || pthread_create (&watcher, NULL, watch, server) != 0) {
        fprintf (stderr, "nvc-sim-manager: the files on %s cannot be served\n", server->mountpoint);
        server_unmount (server);
        return 1;
    }
    printf ("nvc-sim-manager: SIMULATED machine %s with %u GPUs on %s\n", machine.name, machine.gpu_count, server->mountpoint);
    fflush (stdout);
    if (ready >= 0) {
        if (write (ready, "", 1) < 0)
            fprintf (stderr, "nvc-sim-manager: descriptor %d: %s\n", ready, strerror (errno));
        close (ready);
    }
    sigwait (&ends, &which);
    manager_stop (server->manager);
    server_unmount (server);
    return 0;
}

int main (int argc, char **argv)
{
    static const struct option options[] = { { "ready-fd", required_argument, NULL, 'r' },
                                             { "die-with-parent", no_argument, NULL, 'd' },
                                             { "manual-clock", no_argument, NULL, 'm' },
                                             { "help", no_argument, NULL, 'h' },
                                             { NULL, 0, NULL, 0 } };
    static struct server server = { .leader = PTHREAD_MUTEX_INITIALIZER,
                                    .jobs_lock = PTHREAD_MUTEX_INITIALIZER,
                                    .started = PTHREAD_COND_INITIALIZER };
    bool manual = false, die = false;
    pid_t parent = getppid ();
    int ready = -1, option;

    while ((option = getopt_long (argc, argv, "", options, NULL)) != -1) {
        if (option == 'r')
            ready = atoi (optarg);
        else if (option == 'd')
            die = true;
        else if (option == 'm')
            manual = true;
        else if (option == 'h')
            return fputs (usage, stdout) < 0;
        else
            return fputs (usage, stderr), 2;
    }
    if (argc - optind != 2)
        return fputs (usage, stderr), 2;
    if (die && (prctl (PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid () != parent))
        return 1;
    if (!read_machine (argv[optind]))
        return 1;
    /* NVIDIA's driver runs in its caller's turn of the processor. This one must not wait for a turn of its own behind
     * all that makes calls: a stop that takes half a second ends its container. Not being allowed to is no failure. */
    (void) setpriority (PRIO_PROCESS, 0, NICE);
    server.mountpoint = realpath (argv[optind + 1], NULL);
    if (server.mountpoint == NULL) {
        fprintf (stderr, "nvc-sim-manager: %s: %s\n", argv[optind + 1], strerror (errno));
        return 1;
    }
    server.machine = &machine;
    server.manager = manager_create (&machine);
    if (server.manager == NULL || getrandom (&server.secret, sizeof (server.secret), 0) != sizeof (server.secret)) {
        fprintf (stderr, "nvc-sim-manager: no memory or no random numbers\n");
        return 1;
    }
    if (manual)
        manager_clock (server.manager, SIM_CLOCK_MANUAL, 0);
    add_nodes (&server);
    return run (&server, ready);
}
