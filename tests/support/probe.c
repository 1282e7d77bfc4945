/* probe: what a container sees, as one JSON object on stdout.

   probe [--make PATH:MAJOR:MINOR] [--node PATH] [--library SONAME] [--text PATH] [--list DIRECTORY] ...

   nodes      opened read-write; the errno tells what refused: EPERM (1) is the device cgroup, ENXIO (6) means that the
              cgroup let the call through and the kernel has no driver for the number, which is all that a simulated
              GPU can show; 0 means that a driver answered.
   libraries  opened by SONAME, so through the container's own ld.so.cache; the path is the loader's answer.
   texts      whole small files.   lists: names in a directory. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static void print_string (const char *text, size_t length)
{
    putchar ('"');
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char) text[i];
        if (c == '"' || c == '\\')
            printf ("\\%c", c);
        else if (c < 0x20 || c >= 0x7f)
            printf ("\\u%04x", c);
        else
            putchar (c);
    }
    putchar ('"');
}

static void print_member (const char *kind, const char *name)
{
    static int first = 1;
    printf ("%s\n{\"kind\": \"%s\", \"name\": ", first ? "" : ",", kind);
    first = 0;
    print_string (name, strlen (name));
}

static void node (const char *path)
{
    struct stat status;
    int fd, number;

    fd = open (path, O_RDWR | O_CLOEXEC);
    number = fd < 0 ? errno : 0;
    print_member ("node", path);
    printf (", \"errno\": %d", number);
    if (stat (path, &status) == 0)
        printf (", \"major\": %u, \"minor\": %u, \"mode\": %u", major (status.st_rdev), minor (status.st_rdev),
                (unsigned) status.st_mode);
    printf ("}");
    if (fd >= 0)
        close (fd);
}

static void make (char *spec)
{
    char path[256];
    unsigned major_number, minor_number;
    int number = 0;

    if (sscanf (spec, "%255[^:]:%u:%u", path, &major_number, &minor_number) != 3)
        exit (2);
    if (mknod (path, S_IFCHR | 0666, makedev (major_number, minor_number)) < 0)
        number = errno;
    print_member ("make", path);
    printf (", \"errno\": %d}", number);
}

static void library (const char *name)
{
    struct link_map *map = NULL;
    char real[4096];
    void *handle = dlopen (name, RTLD_LAZY | RTLD_LOCAL);

    print_member ("library", name);
    if (handle == NULL) {
        const char *why = dlerror ();
        printf (", \"path\": \"\", \"error\": ");
        print_string (why, strlen (why));
    } else if (dlinfo (handle, RTLD_DI_LINKMAP, &map) == 0 && realpath (map->l_name, real) != NULL) {
        printf (", \"error\": \"\", \"found\": ");
        print_string (map->l_name, strlen (map->l_name));
        printf (", \"path\": ");
        print_string (real, strlen (real));
    }
    printf ("}");
}

static void text (const char *path)
{
    static char buffer[1 << 20];
    size_t length = 0;
    ssize_t got = 0;
    int number = 0, fd = open (path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        number = errno;
    else {
        while (length < sizeof buffer && (got = read (fd, buffer + length, sizeof buffer - length)) > 0)
            length += (size_t) got;
        number = got < 0 ? errno : 0;
        close (fd);
    }
    print_member ("text", path);
    printf (", \"errno\": %d, \"text\": ", number);
    print_string (buffer, length);
    printf ("}");
}

static void list (const char *path)
{
    struct dirent *entry;
    DIR *directory = opendir (path);
    int number = directory == NULL ? errno : 0;
    const char *comma = "";

    print_member ("list", path);
    printf (", \"errno\": %d, \"names\": [", number);
    while (directory != NULL && (entry = readdir (directory)) != NULL)
        if (strcmp (entry->d_name, ".") != 0 && strcmp (entry->d_name, "..") != 0) {
            printf ("%s", comma);
            print_string (entry->d_name, strlen (entry->d_name));
            comma = ", ";
        }
    printf ("]}");
    if (directory != NULL)
        closedir (directory);
}

int main (int argc, char **argv)
{
    printf ("[");
    for (int i = 1; i + 1 < argc; i += 2)
        if (strcmp (argv[i], "--make") == 0)
            make (argv[i + 1]);
        else if (strcmp (argv[i], "--node") == 0)
            node (argv[i + 1]);
        else if (strcmp (argv[i], "--library") == 0)
            library (argv[i + 1]);
        else if (strcmp (argv[i], "--text") == 0)
            text (argv[i + 1]);
        else if (strcmp (argv[i], "--list") == 0)
            list (argv[i + 1]);
        else
            return 2;
    printf ("\n]\n");
    return fflush (stdout) == 0 ? 0 : 1;
}
