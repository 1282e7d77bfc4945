// Entry: the agent's answer, or the Python program.
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char request[REQUEST_LIMIT];
// For a hook that may have been started with the container's variables.
static char *const NO_VARIABLES[] = { NULL };

// Ends as the worker ended.
static int end_as (int status)
{
    if (WIFSIGNALED (status)) {
        sigset_t one;
        sigemptyset (&one);
        sigaddset (&one, WTERMSIG (status));
        signal (WTERMSIG (status), SIG_DFL);
        sigprocmask (SIG_UNBLOCK, &one, NULL);
        raise (WTERMSIG (status));
        return 128 + WTERMSIG (status);
    }
    return WEXITSTATUS (status);
}

static int become_python (const struct place *place, char *argv[])
{
    execv (place->launcher, argv);
    fprintf (stderr, "%s: %s: %s\n", place->name, place->launcher, strerror (errno));
    return 127;
}

// As the Python programs say it (docs/reference/errors.md): an engine shows one line of what it started.
static int fail (const char *name, const char *message, const char *hint)
{
    struct stat status; // a hook's is no file: hook/process.py
    if (fstat (2, &status) != 0 || (strstr (name, "hook") && (S_ISREG (status.st_mode) || S_ISBLK (status.st_mode))))
        return 1;
    if (strcmp (name, "nvc-py") == 0 || strcmp (name, "nvidia-container-cli") == 0)
        fprintf (stderr, "%s: agent error: %s\n%s: hint: %s\n", name, message, name, hint);
    else
        fprintf (stderr, "%s: agent error: %s (hint: %s)\n", name, message, hint);
    return 1;
}

static int late (const char *name, int timeout)
{
    char message[256];
    snprintf (message, sizeof message,
              "no answer of the pre-fork server in %lld s: it or its worker was stopped, or a file system that "
              "the worker reads does not answer",
              (long long) timeout * NVC_ANSWER_MILLISECONDS / 1000);
    return fail (name, message,
                 "look at the processes below nvc:[warm]: one in state T was stopped (systemctl restart nvc-agent), "
                 "one in D waits for a file system; then start the container again");
}

static int streams_open (void) { return fcntl (0, F_GETFD) >= 0 && fcntl (1, F_GETFD) >= 0 && fcntl (2, F_GETFD) >= 0; }

int main (int argc, char *argv[])
{
    struct place place;
    if (place_find (&place) != 0) {
        fprintf (stderr, "%s: the Python program of this installation is missing; install it again\n", argc ? argv[0] : "nvc-py");
        return 1;
    }
    if (argc > 0)
        runtime_become (place.name, argv);
    if (argc > 0 && geteuid () == 0 && request_wanted (place.name, argv + 1) && streams_open ()) {
        char *const *variables = strcmp (place.name, CDI_HOOK) == 0 ? NO_VARIABLES : environ;
        size_t length = request_make (&place, argv + 1, variables, request);
        int status, timeout = request_timeout (argv + 1);
        enum outcome outcome = length ? session_run (request, length, timeout, &status) : BECOME_PYTHON;
        if (outcome == LATE)
            return late (place.name, timeout);
        if (outcome == ENDED) {
            int code = status >= 0 && WIFEXITED (status) ? WEXITSTATUS (status) : -1;
            if (runtime_wanted () && (code == 0 || code == EDIT_SKIPPED)) {
                if (code == 0)
                    runtime_edited (argv);
                return become_python (&place, argv); // what was done may be done again
            }
            if (status >= 0)
                return end_as (status);
            return fail (place.name, "the agent ended in the middle of the work",
                         "what had been done to the container is taken back; try again");
        }
    }
    return become_python (&place, argv);
}
