/* native/supervisor/admission.c with a second in place of its minute, for nvc-monitor in a test. */
#define ADMIT_MS 1000

#include "supervisor/admission.c"
