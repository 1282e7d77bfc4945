/* nvc-runtime with the settings of another directory (SETTINGS), for a handler of its own beside the node's. A shell takes a millisecond. */
#include <stdlib.h>
#include <unistd.h>

int main (int argc, char *argv[])
{
    (void) argc;
    setenv ("XDG_CONFIG_HOME", SETTINGS, 1);
    execv (RUNTIME, argv);
    return 127;
}
