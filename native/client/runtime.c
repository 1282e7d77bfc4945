// nvc-runtime for a command that is about no GPU: becomes the real runtime without Python (hook/runtime), which decides all else.
//
// A container can ask for GPUs only with words that stand in its config.json. So that file is not parsed: where none of the words is
// in it, no reading finds a request, whatever its structure. The same holds of config.toml: a line that is not understood is Python's.
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// The lists are those of hook/runtime/command.py, hook/swarm.py and nvc/request/hook_config.py (tests/contract/test_client_runtime.py).
static const char *const COMMANDS[] = {
    "checkpoint", "create", "delete", "events", "features", "init", "kill",    "list",       "pause", "ps",     "restore", "resume",
    "run",        "spec",   "start",  "state",  "update",   "help", "version", "completion", "info",  "mounts", NULL,
};
static const char *const VALUED[] = {
    "log", "log-format", "log-level", "root", "criu", "rootless", "cgroup-manager", "l", "r", NULL
};
static const char *const CONFIGS[] = { "nvc/config.toml", "nvidia-container-runtime/config.toml", NULL };
static const char *const NAMES[] = {
    "nvc-runtime", "nvidia-container-runtime", "nvidia-container-runtime.legacy", "nvidia-container-runtime.cdi", NULL,
};
static const char *const RUNTIMES[] = { "runc", "crun", NULL }, *const CRUN_FIRST[] = { "crun", "runc", NULL };
#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
// What each request has (hook/bundle.py, hook/environment.py, hook/swarm.py, hook/runtime/__main__.py).
static const char *const WORDS[] = {
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VERSION",
    "nvidia-container-devices",
    "cdi.k8s.io/",
    "NVC_DEVICES",
    "apply-cuda-memory-limits",
    "run.oci.hooks",
    "org.criu.",
    NULL,
};
// A request only where it stands alone: it is in the name of a directory of every container.
#define WHOLE_WORD "share"
// What is in a config.json that gives a GPU without being asked: a node's name, all rights, the host's /dev; a rule's number.
static const char *const GIVEN[] = { "nvidia", "CAP_SYS_ADMIN", "devtmpfs", NULL };
#define DEVICE_MAJOR "195"
#define DEVICES "/dev"
// Keys that may hold another word, or another place for what Python writes; and their lines that say what is so in any case.
static const char *const KEYS[] = { "runtimes", "annotation-prefixes",      "swarm-resource", "debug",
                                    "guard",    "nvidia-container-runtime", "directory",      NULL };
#define REQUIRES "guard=\"require\""
#define NEVER "guard=\"off\""
#define RUNTIME_TABLE "[nvidia-container-runtime]"
#define PREFERS_CRUN "runtimes=[\"crun\",\"runc\"]"
static const char *const USUAL[] = { "runtimes=[\"runc\",\"crun\"]",
                                     "annotation-prefixes=[\"cdi.k8s.io/\"]",
                                     "guard=\"auto\"",
                                     REQUIRES,
                                     NEVER,
                                     "directory=\"/run/nvc/agent\"",
                                     NULL };

static int listed (const char *const list[], const char *text, size_t length)
{
    for (; *list; list++)
        if (strlen (*list) == length && memcmp (*list, text, length) == 0)
            return 1;
    return 0;
}

static int is_part (unsigned char byte)
{
    return (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') ||
           (byte && strchr ("_-./", byte));
}

static int hexadecimal (const char *text)
{
    int value = 0;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef0123456789ABCDEF", *digit = text[i] ? strchr (digits, text[i]) : NULL;
        if (!digit)
            return -1;
        value = value * 16 + (int) (digit - digits) % 16;
    }
    return value;
}

// JSON's escapes become what they stand for, or a space where no word can have it. The new length; -1 for what JSON does not have.
static ssize_t unescape (char *text, size_t length)
{
    size_t used = 0;
    for (size_t at = 0; at < length; at++) {
        unsigned char byte = (unsigned char) text[at];
        if (byte < ' ' && byte != '\n' && byte != '\t' && byte != '\r')
            return -1;
        if (byte == '\\') {
            if (++at == length || !text[at] || !strchr ("\"\\/bfnrtu", text[at]))
                return -1;
            byte = strchr ("\"\\/", text[at]) ? (unsigned char) text[at] : ' ';
            if (text[at] == 'u') {
                int value = length - at > 4 ? hexadecimal (text + at + 1) : -1;
                if (value < 0)
                    return -1;
                byte = value > ' ' && value < 127 ? (unsigned char) value : ' ';
                at += 4;
            }
        }
        text[used++] = (char) byte;
    }
    return (ssize_t) used;
}

// How often a word stands alone.
static int alone (const char *text, const char *end, const char *word)
{
    int count = 0;
    size_t length = strlen (word);
    for (const char *found = text; (found = memmem (found, (size_t) (end - found), word, length)); found += length) {
        const char *after = found + length;
        count += (found == text || !is_part ((unsigned char) found[-1])) && (after == end || !is_part ((unsigned char) *after));
    }
    return count;
}

static int has_one (const char *text, const char *end, const char *const words[])
{
    for (; *words; words++)
        if (memmem (text, (size_t) (end - text), *words, strlen (*words)))
            return 1;
    return 0;
}

// A rule's number -1 is every number.
static int has_negative (const char *text, const char *end)
{
    for (const char *at = text; (at = memchr (at, '-', (size_t) (end - at))); at++)
        if (at > text && strchr (": \t\r\n", at[-1]) && at + 1 < end && at[1] >= '0' && at[1] <= '9')
            return 1;
    return 0;
}

int runtime_may_ask (char *text, size_t size, int given)
{
    ssize_t length = unescape (text, size);
    if (length < 0)
        return 1;
    const char *end = text + length;
    if (has_one (text, end, WORDS) || alone (text, end, WHOLE_WORD))
        return 1;
    // Every container has a directory of that name once.
    return given && (has_one (text, end, GIVEN) || alone (text, end, DEVICE_MAJOR) || alone (text, end, DEVICES) > 1 ||
                     has_negative (text, end));
}

// What config.toml says of containers that are guarded: `auto` where an agent is, or all, or none.
static enum { AUTO, REQUIRED, OFF } guarded;

// What it says of the real runtime: which table a line is in, whether one before it named runtimes, which is the first of them.
static struct {
    int table, named, crun;
} runtimes;

static int names_runtimes (const char *line)
{
    runtimes.crun = strcmp (line, PREFERS_CRUN) == 0 && runtimes.table;
    return !runtimes.named++ && (runtimes.crun || strcmp (line, USUAL[0]) == 0);
}

// One line of config.toml, without its spaces: nothing, a comment, the name of a table, or KEY=VALUE on one line.
static int line_is_usual (const char *line)
{
    if (strncmp (line, USUAL[0], strlen ("runtimes=")) == 0)
        return names_runtimes (line);
    if (strcmp (line, REQUIRES) == 0 || strcmp (line, NEVER) == 0)
        guarded = strcmp (line, NEVER) == 0 ? OFF : REQUIRED;
    if (!*line || *line == '#' || listed (USUAL, line, strlen (line)))
        return 1;
    size_t length = strlen (line), key = 0;
    if (*line == '[') {
        for (key = 1; is_part ((unsigned char) line[key]); key++)
            ;
        runtimes.table = strcmp (line, RUNTIME_TABLE) == 0;
        return !strstr (line, "runtimes") && key > 1 && line[key] == ']' && line[key + 1] == '\0';
    }
    while (is_part ((unsigned char) line[key]) && line[key] != '.' && line[key] != '/')
        key++;
    const char *value = line + key + 1;
    if (key == 0 || line[key] != '=' || listed (KEYS, line, key) || strstr (line, "\"\"\"") || strstr (line, "'''") ||
        *value == '{')
        return 0;
    return *value != '[' || (line[length - 1] == ']' && !strchr (value, '#'));
}

int runtime_config_is_usual (char *text, size_t size)
{
    if (memchr (text, '\0', size))
        return 0;
    memset (&runtimes, 0, sizeof runtimes);
    size_t used = 0;
    for (size_t at = 0; at <= size; at++) {
        char byte = at < size ? text[at] : '\n';
        if (byte == ' ' || byte == '\t' || byte == '\r')
            continue;
        if (byte != '\n') {
            text[used++] = byte;
            continue;
        }
        text[used] = '\0'; // at most text[size], which the caller has
        if (!line_is_usual (text))
            return 0;
        used = 0;
    }
    return runtimes.crun ? USUAL_BUT_CRUN : 1;
}

// The whole of a small regular file, with a NUL behind it that is not counted; NULL for any other.
static char *read_file (const char *path, size_t *size)
{
    struct stat status;
    int file = open (path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0)
        return NULL;
    char *text = NULL;
    if (fstat (file, &status) == 0 && S_ISREG (status.st_mode) && status.st_size < FILE_LIMIT &&
        (text = malloc ((size_t) status.st_size + 2))) {
        // One byte more than it had: a file that grows is not read as a part of itself.
        ssize_t length = read (file, text, (size_t) status.st_size + 1);
        if (length != (ssize_t) status.st_size) {
            free (text);
            text = NULL;
        } else {
            text[length] = '\0';
            *size = (size_t) length;
        }
    }
    close (file);
    return text;
}

static int file_holds (const char *path, int (*holds) (char *, size_t), int unread)
{
    size_t size = 0;
    char *text = read_file (path, &size);
    int answer = text ? holds (text, size) : unread;
    free (text);
    return answer;
}

static int settings_are_usual (void)
{
    const char *named = getenv ("NVIDIA_CTK_CONFIG_FILE_PATH"), *directory = getenv ("XDG_CONFIG_HOME");
    struct stat status;
    char path[PATH_LIMIT];
    if ((named && *named) || getenv ("NVC_DEVICES"))
        return 0;
    for (const char *const *file = CONFIGS; *file; file++) {
        int length = snprintf (path, sizeof path, "%s/%s", directory && *directory == '/' ? directory : "/etc", *file);
        if (length < 0 || (size_t) length >= sizeof path)
            return 0;
        if (lstat (path, &status) == 0)
            return file_holds (path, runtime_config_is_usual, 0);
        if (errno != ENOENT && errno != ENOTDIR)
            return 0;
    }
    return 1;
}

// The command among the words of a runtime's command line, and its bundle; NULL where Python has to say.
static const char *command_of (char *const words[], const char **bundle)
{
    for (; *words && **words == '-' && (*words)[1]; words++) {
        const char *name = *words + strspn (*words, "-");
        if (listed (VALUED, name, strlen (name)) && words[1])
            words++;
    }
    const char *command = *words;
    if (!command || !listed (COMMANDS, command, strlen (command)))
        return NULL;
    for (*bundle = "."; *words; words++) {
        const char *name = *words + strspn (*words, "-");
        size_t length = strcspn (name, "=");
        if (**words != '-' || !(listed ((const char *const[]) { "b", "bundle", NULL }, name, length)))
            continue;
        if (!name[length] && !words[1])
            return NULL;
        *bundle = name[length] ? name + length + 1 : words[1];
    }
    return command;
}

// Whether a container without a GPU is refused the drivers; what cannot be told counts as yes.
static int is_refused (void)
{
#if defined __x86_64__ || defined __aarch64__
    struct stat status;
    return guarded == REQUIRED ||
           (guarded == AUTO && (lstat (AGENT_DIRECTORY, &status) == 0 || (errno != ENOENT && errno != ENOTDIR)));
#else
    return 0;
#endif
}

static int refuses; // as is_refused said once
static int may_edit; // whether the agent may: a container is made, by usual settings

static int may_ask (char *text, size_t size) { return runtime_may_ask (text, size, refuses); }

static enum { PYTHONS, AS_IT_IS, WITHOUT_GPU } decide (char *const words[])
{
    const char *bundle, *command = command_of (words, &bundle);
    char path[PATH_LIMIT];
    if (!command || !settings_are_usual ())
        return PYTHONS;
    if (strcmp (command, "checkpoint") == 0)
        return PYTHONS;
    if (strcmp (command, "create") != 0 && strcmp (command, "run") != 0 && strcmp (command, "restore") != 0)
        return AS_IT_IS;
    refuses = is_refused ();
    may_edit = strcmp (command, "restore") != 0;
    int length = snprintf (path, sizeof path, "%s/config.json", *bundle ? bundle : ".");
    return length > 0 && (size_t) length < sizeof path && !file_holds (path, may_ask, 1) ? WITHOUT_GPU : PYTHONS;
}

// In the directories of PATH, then the usual ones. 0 where there is none, or this program has its name.
static int find_runtime (char *path, size_t size)
{
    struct stat own, found;
    const char *variable = getenv ("PATH");
    if (stat ("/proc/self/exe", &own) != 0)
        return 0;
    for (const char *const *name = runtimes.crun ? CRUN_FIRST : RUNTIMES; *name; name++)
        for (int usual = 0; usual < 2; usual++)
            for (const char *part = usual ? DEFAULT_PATH : variable ? variable : ""; *part; part += *part == ':') {
                int length = (int) strcspn (part, ":");
                int written = snprintf (path, size, "%.*s/%s", length, part, *name);
                if (*part == '/' && written > 0 && (size_t) written < size && stat (path, &found) == 0 && S_ISREG (found.st_mode) &&
                    access (path, X_OK) == 0)
                    return found.st_dev != own.st_dev || found.st_ino != own.st_ino;
                part += length;
            }
    return 0;
}

void runtime_become (const char *name, char *argv[])
{
    char path[PATH_LIMIT], *called = argv[0];
    if (!listed (NAMES, name, strlen (name)))
        return;
    int decided = decide (argv + 1);
    if (decided == PYTHONS || !find_runtime (path, sizeof path) || (decided == WITHOUT_GPU && refuses && refusal_install () != 0))
        return;
    argv[0] = path;
    execv (path, argv);
    argv[0] = called;
}

int runtime_wanted (void) { return may_edit; }

void runtime_edited (char *argv[])
{
    char path[PATH_LIMIT], *called = argv[0];
    if (!find_runtime (path, sizeof path) || entry32_close () != 0)
        return;
    argv[0] = path;
    execv (path, argv);
    argv[0] = called;
}
