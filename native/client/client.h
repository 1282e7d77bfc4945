// The installed programs nvc-py, nvc-hook, nvc-cdi-hook, nvc-runtime and their other names: a client of the agent's pre-fork server (nvc.prefork)
// that becomes the Python program when there is no agent, or the server does not take this request. As nvc-runtime it
// becomes the real runtime: at once where nothing asks for a GPU, or when the agent has edited a guarded container's config.json.
//
// One SOCK_SEQPACKET connection, packets:
//     client  struct request_header, then strings with their NUL: name, words, environment; four descriptors
//     agent   'R' ready to begin, or 'N' not taken
//     client  'G' go
//     agent   'S' and the wait status of the worker (int), or 'N' when no worker could be made
//     client  'K' and a signal's number (one byte), at any time between
// Nothing is begun before 'G', so until then, and after 'N', the client may always become the Python program.
// nvc/prefork/server.py has the same layout.
#ifndef NVC_CLIENT_H
#define NVC_CLIENT_H

#include <stddef.h>
#include <stdint.h>

// Where the agent listens; another place is for tests, at compile time: no variable may choose it.
#ifndef NVC_AGENT_SOCKET
#define NVC_AGENT_SOCKET "/run/nvc/agent/run"
#endif

// Milliseconds that the client waits for the work, for each second of --timeout, of which the work has at most five one after the other: its input,
// the driver (two), the container, what is undone. Another number is for tests.
#ifndef NVC_ANSWER_MILLISECONDS
#define NVC_ANSWER_MILLISECONDS 6000
#endif

// The agent's directory, unless config.toml names another one: it is there from the first agent on until the machine's end.
#define AGENT_DIRECTORY "/run/nvc/agent"

// Started in a container's namespaces, before its root is the container's.
#define CDI_HOOK "nvc-cdi-hook"

#define REQUEST_MAGIC "nvcrun1"

enum {
    REQUEST_LIMIT = 96 * 1024, // fits a socket's smallest usual send buffer
    REQUEST_DESCRIPTORS = 4, // standard input, output, error; working directory
    READY_MILLISECONDS = 1000, // until 'R' or 'N'; an agent that is busy for longer is of no use
    TIMEOUT_SECONDS = 10, // of --timeout where none is given, and of a shorter one
    TIMEOUT_LIMIT = 86400, // nvc/cli/settings.py
    PATH_LIMIT = 4096,
    FILE_LIMIT = 1024 * 1024, // of a config.json or config.toml that is looked at here
    USUAL_BUT_CRUN = 2, // of runtime_config_is_usual
    EDIT_SKIPPED = 3, // exit code of the work for nvc-runtime: nothing was done, the Python program is to do it
};

struct request_header {
    char magic[8];
    uint32_t words;
    uint32_t variables;
    uint32_t mask; // umask
    uint32_t zero;
    uint64_t stamp[4]; // nvc/__init__.py of this installation: device, inode, ctime seconds, nanoseconds
};

// The installation that this program belongs to.
struct place {
    char name[64]; // of the program
    char library[PATH_LIMIT]; // PREFIX/lib/nvc-py
    char launcher[PATH_LIMIT]; // the Python program
};

enum outcome { BECOME_PYTHON, ENDED, LATE };

// Finds the installation from the path of this executable; 0, or -1 when it cannot be told.
int place_find (struct place *place);

// The request in `buffer` of REQUEST_LIMIT bytes; its length, or 0 when it cannot be made (too long, not installed).
size_t request_make (const struct place *place, char *const words[], char *const environment[], char *buffer);

// Whether the agent may take these words; it checks them itself.
int request_wanted (const char *name, char *const words[]);

// The greatest --timeout among the words, in seconds.
int request_timeout (char *const words[]);

// Sends the request and waits for its end, but not for ever. ENDED: *status is a wait status, or -1 when the connection broke. LATE: there was no
// answer in the time of such a --timeout; the work was ended as far as it can be, and may be half done.
enum outcome session_run (const char *request, size_t length, int timeout, int *status);

// Whether the agent may edit the config.json of the command that runtime_become was called for.
int runtime_wanted (void);

// After the agent did: becomes the real runtime of a guarded container; returns where that cannot be.
void runtime_edited (char *argv[]);

// Becomes the real runtime, where `name` is one of nvc-runtime's and no GPU is asked for; returns where Python has to decide.
void runtime_become (const char *name, char *argv[]);

// Whether a config.json may ask for GPUs, or with `given` have them without asking: 1 where that is not certain. The text is changed.
int runtime_may_ask (char *text, size_t size, int given);

// Whether a config.toml changes nothing of what a request is or of the real runtime, but for USUAL_BUT_CRUN: that crun is tried before runc.
// The text is changed; text[size] is the caller's.
int runtime_config_is_usual (char *text, size_t size);

// The first mmap of the 32-bit entry is closed to this process and all that it executes; 0, or -1.
int entry32_close (void);

// NVIDIA's drivers refuse their requests to this process and all that it executes; 0, or -1 where that should have been and is not.
int refusal_install (void);

#endif
