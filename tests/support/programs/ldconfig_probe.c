/* In ldconfig's place: tells what it sees, or hangs, crashes or floods when a directory is named so. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
extern char **environ;
static void count (const char *path)
{
    DIR *d = opendir (path);
    int n = 0;
    struct dirent *e;
    if (!d) {
        printf ("%s=%s\n", path, strerror (errno));
        return;
    }
    while ((e = readdir (d)))
        n += e->d_name[0] != '.';
    printf ("%s=%d\n", path, n);
}
static void copy (const char *path, const char *tag)
{
    char line[4096];
    FILE *f = fopen (path, "r");
    while (f && fgets (line, sizeof line, f))
        printf ("%s=%s", tag, line);
}
static void kind (const char *name)
{
    char path[64], text[128] = "";
    snprintf (path, sizeof path, "/proc/self/ns/%s", name);
    if (readlink (path, text, sizeof text - 1) > 0)
        printf ("namespace=%s\n", text);
}
static void show (const char *path)
{
    char line[4096];
    FILE *f = fopen (path, "r");
    if (!f) {
        printf ("%s=%s\n", path, strerror (errno));
        return;
    }
    while (fgets (line, sizeof line, f))
        if (!strncmp (line, "Cap", 3) || !strncmp (line, "NoNewPrivs", 10) || !strncmp (line, "Seccomp", 7) ||
            !strncmp (line, "Uid", 3) || !strncmp (line, "Gid", 3) || !strncmp (line, "Groups", 6) || !strncmp (line, "Sig", 3))
            printf ("%s", line);
    fclose (f);
}
int main (int argc, char **argv)
{
    setvbuf (stdout, NULL, _IONBF, 0);
    if (argc > 5 && !strcmp (argv[5], "/hang"))
        for (;;)
            pause ();
    if (argc > 5 && !strcmp (argv[5], "/spin"))
        for (;;)
            ;
    if (argc > 5 && !strcmp (argv[5], "/crash"))
        abort ();
    if (argc > 5 && !strcmp (argv[5], "/open"))
        for (int i = 6; i < argc; i++)
            printf ("open=%s %d\n", argv[i], open (argv[i], O_RDONLY) < 0 ? errno : 0);
    if (argc > 5 && !strcmp (argv[5], "/noise"))
        for (int i = 0; i < 100000; i++)
            puts ("noise noise noise noise");
    for (int i = 0; i < argc; i++)
        printf ("arg=%s\n", argv[i]);
    close (open (argv[4], O_CREAT | O_WRONLY, 0644));
    char exe[128] = "";
    readlink ("/proc/self/exe", exe, sizeof exe - 1);
    int self = open ("/proc/self/exe", O_RDONLY);
    printf ("exe=%s %d\n", exe, fcntl (self, F_GET_SEALS));
    close (self);
    printf ("pid=%d uid=%d gid=%d cwd=%s\n", getpid (), getuid (), getgid (), getcwd (NULL, 0));
    printf ("environment=%d\n", environ[0] != NULL);
    printf ("socket=%s\n", socket (AF_INET, SOCK_STREAM, 0) < 0 ? strerror (errno) : "made");
    printf ("mount=%s\n", unlink ("/host-marker") < 0 ? strerror (errno) : "unlinked");
    struct stat st;
    if (!stat ("/proc/1", &st))
        printf ("dumpable-by=%d\n", (int) st.st_uid);
    for (int fd = 0; fd < 64; fd++)
        if (!fstat (fd, &st))
            printf ("fd=%d\n", fd);
    count ("/dev");
    count ("/sys");
    count ("/");
    count ("/..");
    show ("/proc/1/status");
    copy ("/proc/self/limits", "limit");
    copy ("/proc/self/mountinfo", "mount-line");
    kind ("ipc");
    kind ("mnt");
    kind ("net");
    kind ("pid");
    kind ("uts");
    return 0;
}
