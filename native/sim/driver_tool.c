/* A placeholder for every other program of the driver (nvidia-persistenced, nvidia-cuda-mps-control ...) on a simulated
 * machine: prints that it is one and does nothing. */
#include <stdio.h>
#include <string.h>

int main (int argc, char **argv)
{
    const char *name = argc > 0 && argv[0] != NULL ? argv[0] : "driver-tool";
    const char *slash = strrchr (name, '/');

    printf ("%s: SIMULATED, does nothing\n", slash != NULL ? slash + 1 : name);
    return 0;
}
