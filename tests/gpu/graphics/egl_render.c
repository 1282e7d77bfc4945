/* Draws a triangle off screen on the first GPU that EGL's device platform finds, and reads it back. No display, no DRM.
   usage: egl_render
   Prints the renderer and "rendered"; exit code 0, 1 without a GPU, 2 for any failure. */
#define EGL_EGLEXT_PROTOTYPES
#define GL_GLEXT_PROTOTYPES
#include <EGL/egl.h>
#include <EGL/eglext.h>
#include <GLES2/gl2.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIDE 64

static __eglMustCastToProperFunctionPointerType (*next) (const char *);

#define FUNCTION(name) __typeof__ (&name) own_##name = (__typeof__ (&name)) next (#name)

static void fail (const char *what, int code)
{
    fprintf (stderr, "%s\n", what);
    exit (code);
}

static GLuint shader (GLenum kind, const char *text)
{
    FUNCTION (glCreateShader);
    FUNCTION (glShaderSource);
    FUNCTION (glCompileShader);
    FUNCTION (glGetShaderiv);
    GLuint made = own_glCreateShader (kind);
    GLint good = 0;
    own_glShaderSource (made, 1, &text, NULL);
    own_glCompileShader (made);
    own_glGetShaderiv (made, GL_COMPILE_STATUS, &good);
    if (!good)
        fail ("a shader does not compile", 2);
    return made;
}

static void draw (void)
{
    FUNCTION (glGetString);
    FUNCTION (glCreateProgram);
    FUNCTION (glAttachShader);
    FUNCTION (glBindAttribLocation);
    FUNCTION (glLinkProgram);
    FUNCTION (glUseProgram);
    FUNCTION (glVertexAttribPointer);
    FUNCTION (glEnableVertexAttribArray);
    FUNCTION (glViewport);
    FUNCTION (glClearColor);
    FUNCTION (glClear);
    FUNCTION (glDrawArrays);
    FUNCTION (glReadPixels);
    FUNCTION (glGetError);

    printf ("renderer %s\n", (const char *) own_glGetString (GL_RENDERER));
    GLuint program = own_glCreateProgram ();
    own_glAttachShader (program, shader (GL_VERTEX_SHADER, "attribute vec2 at; void main() { gl_Position = vec4(at, 0.0, 1.0); }"));
    own_glAttachShader (program, shader (GL_FRAGMENT_SHADER, "void main() { gl_FragColor = vec4(0.0, 1.0, 0.0, 1.0); }"));
    own_glBindAttribLocation (program, 0, "at");
    own_glLinkProgram (program);
    own_glUseProgram (program);
  /* The lower left half of the picture. */
    static const GLfloat corners[] = { -1, -1, 1, -1, -1, 1 };
    own_glVertexAttribPointer (0, 2, GL_FLOAT, GL_FALSE, 0, corners);
    own_glEnableVertexAttribArray (0);
    own_glViewport (0, 0, SIDE, SIDE);
    own_glClearColor (1, 0, 0, 1);
    own_glClear (GL_COLOR_BUFFER_BIT);
    own_glDrawArrays (GL_TRIANGLES, 0, 3);
    static unsigned char pixels[SIDE * SIDE * 4];
    own_glReadPixels (0, 0, SIDE, SIDE, GL_RGBA, GL_UNSIGNED_BYTE, pixels);
    if (own_glGetError () != GL_NO_ERROR)
        fail ("a GL call failed", 2);
    const unsigned char *inside = pixels + 4 * (8 * SIDE + 8), *outside = pixels + 4 * (56 * SIDE + 56);
    if (memcmp (inside, "\x00\xff\x00\xff", 4) != 0 || memcmp (outside, "\xff\x00\x00\xff", 4) != 0)
        fail ("the picture is another", 2);
    printf ("rendered\n");
}

int main (void)
{
    void *library = dlopen ("libEGL.so.1", RTLD_NOW);
    if (library == NULL)
        fail (dlerror (), 2);
    *(void **) &next = dlsym (library, "eglGetProcAddress");
    FUNCTION (eglQueryDevicesEXT);
    FUNCTION (eglGetPlatformDisplayEXT);
    FUNCTION (eglInitialize);
    FUNCTION (eglBindAPI);
    FUNCTION (eglChooseConfig);
    FUNCTION (eglCreatePbufferSurface);
    FUNCTION (eglCreateContext);
    FUNCTION (eglMakeCurrent);
    EGLDeviceEXT devices[16];
    EGLint count = 0;
    if (own_eglQueryDevicesEXT == NULL || !own_eglQueryDevicesEXT (16, devices, &count) || count == 0)
        fail ("no GPU", 1);
    EGLDisplay display = own_eglGetPlatformDisplayEXT (EGL_PLATFORM_DEVICE_EXT, devices[0], NULL);
    if (display == EGL_NO_DISPLAY || !own_eglInitialize (display, NULL, NULL))
        fail ("no GPU that can be initialized", 1);
    own_eglBindAPI (EGL_OPENGL_ES_API);
    static const EGLint wanted[] = { EGL_SURFACE_TYPE,
                                     EGL_PBUFFER_BIT,
                                     EGL_RENDERABLE_TYPE,
                                     EGL_OPENGL_ES2_BIT,
                                     EGL_RED_SIZE,
                                     8,
                                     EGL_GREEN_SIZE,
                                     8,
                                     EGL_BLUE_SIZE,
                                     8,
                                     EGL_ALPHA_SIZE,
                                     8,
                                     EGL_NONE };
    EGLConfig config;
    if (!own_eglChooseConfig (display, wanted, &config, 1, &count) || count == 0)
        fail ("no configuration", 2);
    static const EGLint size[] = { EGL_WIDTH, SIDE, EGL_HEIGHT, SIDE, EGL_NONE };
    static const EGLint version[] = { EGL_CONTEXT_CLIENT_VERSION, 2, EGL_NONE };
    EGLSurface surface = own_eglCreatePbufferSurface (display, config, size);
    EGLContext context = own_eglCreateContext (display, config, EGL_NO_CONTEXT, version);
    if (surface == EGL_NO_SURFACE || context == EGL_NO_CONTEXT || !own_eglMakeCurrent (display, surface, surface, context))
        fail ("no context", 2);
    draw ();
    return 0;
}
