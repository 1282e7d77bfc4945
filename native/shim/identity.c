#include "identity.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "plain.h"
#include "raw.h"

extern char **environ __attribute__ ((weak));

/* Field 22 of /proc/self/stat; the second field, in brackets, may itself hold blanks and brackets. */
static uint64_t start_time (void)
{
    char text[1024], *at = text, *bracket = NULL;
    uint64_t value = 0;

    raw_read_file ("/proc/self/stat", text, sizeof text);
    for (; *at; at++)
        if (*at == ')')
            bracket = at;
    if (!bracket)
        return 0;
    at = bracket;
    for (int field = 2; field < 22 && *at; at++)
        field += *at == ' ';
    for (; *at >= '0' && *at <= '9'; at++)
        value = value * 10 + (uint64_t) (*at - '0');
    return value;
}

void identity_fill (struct region_slot *slot)
{
    struct stat file;
    char name[24];
    long length = raw_read_file ("/proc/self/comm", name, sizeof name);

    if (RAW4 (SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &file, 0) == 0)
        slot->pid_namespace = file.st_ino;
    slot->pid = (uint32_t) RAW0 (SYS_getpid);
    slot->start_time = start_time ();
    memset (slot->name, 0, sizeof slot->name);
    for (long i = 0; i < length && i < (long) sizeof slot->name - 1 && name[i] != '\n'; i++)
        slot->name[i] = name[i];
}

bool identity_secure (void)
{
    uint64_t vector[2 * 64];
    long size = raw_read_file ("/proc/self/auxv", (char *) vector, sizeof vector);

    for (long i = 0; i + 16 <= size; i += 16)
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
