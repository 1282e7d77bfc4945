/*
 * The table of open files of the driver (files.h). Runs in every process of a container that uses a GPU, on the calling
 * thread, under the process's lock; files_may_track alone reads the table without it.
 */
#include "files.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "plain.h"

#define TABLE_SIZE (FILES_DESCRIPTORS * sizeof (uint32_t))

static uint64_t name_of (const struct files *files, uint32_t index) { return (uint64_t) files->files[index].serial << 32 | index; }

/* 1: the same open file description, 0: another, -1: kcmp is not available (seccomp, no CONFIG_KCMP). */
static int same_file (int one, int other)
{
    long pid = RAW0 (SYS_getpid);
    long order = RAW5 (SYS_kcmp, pid, pid, KCMP_FILE, one, other);

    return raw_failed (order) ? -1 : order == 0;
}

/* Other threads read the table without a lock: the pointer is published before the size. */
static void use_table (struct files *files, uint32_t *table, uint32_t descriptors)
{
    __atomic_store_n (&files->by_descriptor, table, __ATOMIC_RELEASE);
    __atomic_store_n (&files->descriptors, descriptors, __ATOMIC_RELEASE);
}

void files_begin (struct files *files, struct files_initial *room)
{
    if (files->by_descriptor)
        return;
    files->files = room->files;
    files->capacity = FILES_INITIAL;
    files->high = 1;
    use_table (files, room->by_descriptor, FILES_INITIAL_DESCRIPTORS);
}

static bool has_room (struct files *files, int descriptor)
{
    uint32_t *table;

    if ((uint32_t) descriptor < files->descriptors)
        return true;
    if (descriptor < 0 || descriptor >= FILES_DESCRIPTORS || !(table = raw_pages (TABLE_SIZE)))
        return false;
    memcpy (table, files->by_descriptor, FILES_INITIAL_DESCRIPTORS * sizeof *table);
    use_table (files, table, FILES_DESCRIPTORS);
    return true;
}

static bool has_room_for_files (struct files *files)
{
    struct open_file *more;

    if (files->high < files->capacity)
        return true;
    if (files->capacity == FILES_MAX || !(more = raw_pages (FILES_MAX * sizeof *more)))
        return false;
    memcpy (more, files->files, files->high * sizeof *more);
    files->files = more;
    files->capacity = FILES_MAX;
    return true;
}

void files_clear (struct files *files)
{
    if (!files->by_descriptor)
        return;
    /* Zeroed in place: another thread may be reading. */
    if (files->descriptors == FILES_DESCRIPTORS)
        RAW3 (SYS_madvise, files->by_descriptor, TABLE_SIZE, MADV_DONTNEED);
    else
        memset (files->by_descriptor, 0, files->descriptors * sizeof *files->by_descriptor);
    memset (files->files, 0, files->high * sizeof *files->files);
    files->high = 1;
}

static void set (struct files *files, int descriptor, uint32_t index)
{
    __atomic_store_n (&files->by_descriptor[descriptor], index, __ATOMIC_RELAXED);
    if (index) {
        files->files[index].descriptors++;
        files->files[index].descriptor = descriptor;
    }
}

/* Removes a descriptor; returns the index of its file. */
static uint32_t unset (struct files *files, int descriptor)
{
    uint32_t index = files->by_descriptor[descriptor];
    struct open_file *file = &files->files[index];

    set (files, descriptor, 0);
    if (--file->descriptors && file->descriptor == descriptor)
        for (file->descriptor = 0; (uint32_t) file->descriptor < files->descriptors - 1; file->descriptor++)
            if (files->by_descriptor[file->descriptor] == index)
                break;
    return index;
}

uint64_t files_open (struct files *files, int descriptor, enum rm_node kind, uint64_t *closed)
{
    uint32_t index = 0;

    *closed = 0;
    if (!has_room (files, descriptor))
        return 0;
    if (files->by_descriptor[descriptor]) {
        index = files->by_descriptor[descriptor];
        if (files->files[index].kind == (uint32_t) kind)
            return name_of (files, index);
        unset (files, descriptor);
        if (!files->files[index].descriptors)
            *closed = name_of (files, index);
    }
    for (uint32_t i = 1; i < files->high; i++) {
        struct open_file *file = &files->files[i];

        if (file->descriptors && file->kind == (uint32_t) kind && same_file (descriptor, file->descriptor) == 1) {
            set (files, descriptor, i);
            return name_of (files, i);
        }
    }
    for (index = 1; index < files->high && files->files[index].descriptors; index++)
        ;
    if (index == files->high) {
        if (!has_room_for_files (files))
            return 0;
        files->high++;
    }
    files->files[index].kind = (uint32_t) kind;
    files->files[index].serial = ++files->serial;
    set (files, descriptor, index);
    return name_of (files, index);
}

int files_descriptor (const struct files *files, uint64_t file)
{
    uint32_t index = (uint32_t) file;

    if (!index || index >= files->high || name_of (files, index) != file || !files->files[index].descriptors)
        return -1;
    return files->files[index].descriptor;
}

void files_duplicate (struct files *files, int from, int to)
{
    if (!files_may_track (files, from) || !has_room (files, to))
        return;
    set (files, to, files->by_descriptor[from]);
}

struct entry { /* linux_dirent64 */
    uint64_t inode;
    int64_t next;
    uint16_t size;
    uint8_t type;
    char name[];
};

static int number (const char *text)
{
    int value = 0;

    if (*text < '0' || *text > '9')
        return -1;
    for (; *text; text++)
        value = value * 10 + (*text - '0');
    return value;
}

/* An untracked descriptor of the same open file, -1: none. *unsure: kcmp is not available, and a descriptor of the same
 * node may be one. */
static int untracked_duplicate (const struct files *files, int descriptor, bool *unsure)
{
    _Alignas (8) char entries[2048];
    struct stat mine, other;
    long size, directory = RAW4 (SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    int duplicate = -1;

    *unsure = directory < 0;
    if (directory < 0 || RAW2 (SYS_fstat, descriptor, &mine) != 0)
        goto close;
    while (duplicate < 0 && (size = RAW3 (SYS_getdents64, directory, entries, sizeof entries)) > 0)
        for (long at = 0; at < size; at += ((struct entry *) (void *) (entries + at))->size) {
            int candidate = number (((struct entry *) (void *) (entries + at))->name), same;

            if (candidate < 0 || candidate == descriptor || candidate >= FILES_DESCRIPTORS || files_may_track (files, candidate) ||
                RAW2 (SYS_fstat, candidate, &other) != 0 || other.st_dev != mine.st_dev || other.st_ino != mine.st_ino)
                continue;
            same = same_file (descriptor, candidate);
            if (same == 1)
                duplicate = candidate;
            *unsure |= same < 0;
        }
close:
    if (directory >= 0)
        RAW1 (SYS_close, directory);
    return duplicate;
}

uint64_t files_close (struct files *files, int descriptor)
{
    uint32_t index;
    bool unsure = false;
    int duplicate;

    if (!files_may_track (files, descriptor))
        return 0;
    index = files->by_descriptor[descriptor];
    if (files->files[index].descriptors == 1 && files->files[index].kind == RM_NODE_CONTROL) {
        duplicate = untracked_duplicate (files, descriptor, &unsure);
        if (duplicate >= 0 && has_room (files, duplicate))
            set (files, duplicate, index);
    }
    unset (files, descriptor);
    /* Unsure: what was allocated through the file stays charged until it is freed by handle or the process ends. */
    return files->files[index].descriptors || unsure ? 0 : name_of (files, index);
}
