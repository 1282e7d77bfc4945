// The installation that this program belongs to, and its name.
#include "client.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

// tools/install gives these names to this program.
static const char *const NAMES[] = {
    "nvc-py",
    "nvidia-container-cli",
    "nvc-hook",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvc-cdi-hook",
    "nvidia-cdi-hook",
    "nvc-runtime",
    "nvidia-container-runtime",
    "nvidia-container-runtime.legacy",
    "nvidia-container-runtime.cdi",
};

static const char *base (const char *path)
{
    const char *slash = strrchr (path, '/');
    return slash ? slash + 1 : path;
}

static int known (const char *name)
{
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++)
        if (strcmp (NAMES[i], name) == 0)
            return 1;
    return 0;
}

// `executable` is PREFIX/bin/NAME.
static int fill (struct place *place, const char *executable, const char *name)
{
    char prefix[PATH_LIMIT];
    if (executable[0] != '/' || strlen (executable) >= sizeof prefix)
        return -1;
    strcpy (prefix, executable);
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr (prefix, '/');
        if (!slash)
            return -1;
        *slash = '\0';
    }
    int written = snprintf (place->name, sizeof place->name, "%s", name);
    if (written < 0 || (size_t) written >= sizeof place->name)
        return -1;
    written = snprintf (place->library, sizeof place->library, "%s/lib/nvc-py", prefix);
    if (written < 0 || (size_t) written >= sizeof place->library)
        return -1;
    written = snprintf (place->launcher, sizeof place->launcher, "%s/lib/nvc-py/bin/%s", prefix, name);
    if (written < 0 || (size_t) written >= sizeof place->launcher)
        return -1;
    return access (place->launcher, F_OK);
}

int place_find (struct place *place)
{
    // The kernel's name for what was executed: as with a script, not argv[0], which the caller chooses freely.
    const char *called = (const char *) getauxval (AT_EXECFN); // NOLINT: an address, as getauxval(3) says
    char executable[PATH_LIMIT];
    ssize_t length = readlink ("/proc/self/exe", executable, sizeof executable - 1);
    if (length > 0) {
        executable[length] = '\0';
        // A link of another name (nvidia-container-cli -> nvc-py) means that program.
        const char *name = called && known (base (called)) ? base (called) : base (executable);
        if (fill (place, executable, name) == 0)
            return 0;
    }
    // No /proc, or an upgrade has just replaced this file.
    char resolved[PATH_MAX];
    if (called && realpath (called, resolved))
        return fill (place, resolved, known (base (called)) ? base (called) : base (resolved));
    return -1;
}
