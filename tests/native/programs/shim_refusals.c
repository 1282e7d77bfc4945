/* A stand-in for libnvc-shim.so: it refuses a mapping when fake_shim_refuse was called before. */
#define E __attribute__ ((visibility ("default")))
E void fake_shim_refuse (void);
E int nvc_shim_managed_refused (void);
static int now;

void fake_shim_refuse (void) { now = 1; }

int nvc_shim_managed_refused (void)
{
    int was = now;

    now = 0;
    return was;
}
