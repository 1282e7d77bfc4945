/* Identity of the process (identity.h). Runs in every process of a container that uses a GPU, under the process's
 * lock. */
#include "identity.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "plain.h"
#include "raw.h"

#ifndef PR_GET_AUXV /* Linux 6.4 */
#define PR_GET_AUXV 0x41555856
#endif

extern char **environ __attribute__ ((weak));

/* Fields 2 and 22 of /proc/self/stat; field 2, the name in parentheses, may itself contain blanks and parentheses. */
static void read_stat (struct region_slot *slot)
{
    char text[1024], *at = text, *name = NULL, *bracket = NULL;
    uint64_t value = 0;

    raw_read_file ("/proc/self/stat", text, sizeof text);
    for (; *at; at++) {
        name = *at == '(' && !name ? at + 1 : name;
        bracket = *at == ')' ? at : bracket;
    }
    if (!name || !bracket)
        return;
    memset (slot->name, 0, sizeof slot->name);
    for (size_t i = 0; i < sizeof slot->name - 1 && name + i < bracket; i++)
        slot->name[i] = name[i];
    at = bracket;
    for (int field = 2; field < 22 && *at; at++)
        field += *at == ' ';
    for (; *at >= '0' && *at <= '9'; at++)
        value = value * 10 + (uint64_t) (*at - '0');
    slot->start_time = value;
}

void identity_fill (struct region_slot *slot)
{
    struct stat file;

    if (RAW4 (SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &file, 0) == 0)
        slot->pid_namespace = file.st_ino;
    slot->pid = (uint32_t) RAW0 (SYS_getpid);
    read_stat (slot);
}

bool identity_secure (void)
{
    uint64_t vector[2 * 64];
    long size = RAW5 (SYS_prctl, PR_GET_AUXV, vector, sizeof vector, 0, 0);

    if (size < 0)
        size = raw_read_file ("/proc/self/auxv", (char *) vector, sizeof vector);
    for (long i = 0; i + 16 <= size && i + 16 <= (long) sizeof vector; i += 16)
        if (vector[i / 8] == AT_SECURE)
            return vector[i / 8 + 1] != 0;
    return true;
}

/* memcmp may read all of both; this stops at the shorter one's end. */
static bool starts_with (const char *text, const char *beginning)
{
    while (*beginning && *text == *beginning)
        text++, beginning++;
    return *beginning == '\0';
}

const char *identity_variable (const char *name)
{
    size_t length = strlen (name);

    if (!&environ || !environ)
        return NULL;
    for (char **variable = environ; *variable; variable++)
        if (starts_with (*variable, name) && (*variable)[length] == '=')
            return *variable + length + 1;
    return NULL;
}
