/* Adds on the first GPU that OpenCL finds, and compares.
   usage: opencl_add
   Prints the GPU and "computed"; exit code 0, 1 without a GPU, 2 for any failure. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT 4096

static void *library;

#define FUNCTION(name) __typeof__ (&name) own_##name = (__typeof__ (&name)) dlsym (library, #name)

static const char *SOURCE = "__kernel void add (__global int *values) { int i = get_global_id (0); values[i] += i; }";

static void check (cl_int result, const char *what)
{
    if (result == CL_SUCCESS)
        return;
    fprintf (stderr, "%s: %d\n", what, result);
    exit (2);
}

int main (void)
{
    library = dlopen ("libOpenCL.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf (stderr, "no loader: %s\n", dlerror ());
        return 2;
    }
    FUNCTION (clGetPlatformIDs);
    FUNCTION (clGetDeviceIDs);
    FUNCTION (clGetDeviceInfo);
    FUNCTION (clCreateContext);
    FUNCTION (clCreateCommandQueue);
    FUNCTION (clCreateProgramWithSource);
    FUNCTION (clBuildProgram);
    FUNCTION (clCreateKernel);
    FUNCTION (clCreateBuffer);
    FUNCTION (clSetKernelArg);
    FUNCTION (clEnqueueNDRangeKernel);
    FUNCTION (clEnqueueReadBuffer);
    cl_platform_id platform;
    cl_device_id device;
    cl_uint count = 0;
    if (own_clGetPlatformIDs (1, &platform, &count) != CL_SUCCESS || count == 0 ||
        own_clGetDeviceIDs (platform, CL_DEVICE_TYPE_ALL, 1, &device, &count) != CL_SUCCESS || count == 0) {
        fprintf (stderr, "no GPU\n");
        return 1;
    }
    char name[256] = "";
    own_clGetDeviceInfo (device, CL_DEVICE_NAME, sizeof name, name, NULL);
    printf ("gpu %s\n", name);
    cl_int result;
    cl_context context = own_clCreateContext (NULL, 1, &device, NULL, NULL, &result);
    check (result, "clCreateContext");
    cl_command_queue queue = own_clCreateCommandQueue (context, device, 0, &result);
    check (result, "clCreateCommandQueue");
    cl_program program = own_clCreateProgramWithSource (context, 1, &SOURCE, NULL, &result);
    check (result, "clCreateProgramWithSource");
    check (own_clBuildProgram (program, 1, &device, "", NULL, NULL), "clBuildProgram");
    cl_kernel kernel = own_clCreateKernel (program, "add", &result);
    check (result, "clCreateKernel");
    static int values[COUNT];
    for (int i = 0; i < COUNT; i++)
        values[i] = 3 * i;
    cl_mem buffer = own_clCreateBuffer (context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof values, values, &result);
    check (result, "clCreateBuffer");
    check (own_clSetKernelArg (kernel, 0, sizeof buffer, &buffer), "clSetKernelArg");
    size_t size = COUNT;
    check (own_clEnqueueNDRangeKernel (queue, kernel, 1, NULL, &size, NULL, 0, NULL, NULL), "clEnqueueNDRangeKernel");
    check (own_clEnqueueReadBuffer (queue, buffer, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL), "read");
    for (int i = 0; i < COUNT; i++)
        if (values[i] != 4 * i) {
            fprintf (stderr, "value %d is %d\n", i, values[i]);
            return 2;
        }
    printf ("computed\n");
    return 0;
}
