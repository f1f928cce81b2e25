/* Paths that the C library hands back, and those that it makes up: the pod's own names for them. */
#include "pod.h"

#include <stdio.h>
#include <unistd.h>

char *getcwd(char *out, size_t size)
{
    REAL(char *, "getcwd", char *, size_t);
    char *result = real(out, size);
    if (result) unmap_path(result, out ? size : strlen(result) + 1);
    return result;
}

char *__getcwd_chk(char *out, size_t size, size_t most)
{
    return getcwd(out, size > most ? most : size);
}

char *realpath(const char *path, char *out)
{
    REAL(char *, "realpath", const char *, char *);
    char room[PATH_MAX];
    const char *mapped = map_path(path, room, 0);
    if (path && !mapped) return NULL;
    char *result = real(mapped, out);
    if (result) unmap_path(result, out ? PATH_MAX : strlen(result) + 1);
    return result;
}

char *__realpath_chk(const char *path, char *out, size_t most)
{
    (void)most;
    return realpath(path, out);
}

static ssize_t seen(ssize_t length, char *out, size_t size)
{
    char text[PATH_MAX];
    if (length <= 0 || (size_t)length >= sizeof text || out[0] != '/') return length;
    memcpy(text, out, (size_t)length);
    text[length] = 0;
    unmap_path(text, sizeof text);
    size_t now = strlen(text);
    if (now > size) now = size;
    memcpy(out, text, now);
    return (ssize_t)now;
}

ssize_t readlink(const char *path, char *out, size_t size)
{
    REAL(ssize_t, "readlink", const char *, char *, size_t);
    char room[PATH_MAX];
    const char *mapped = map_path(path, room, 0);
    return path && !mapped ? -1 : seen(real(mapped, out, size), out, size);
}

ssize_t readlinkat(int directory, const char *path, char *out, size_t size)
{
    REAL(ssize_t, "readlinkat", int, const char *, char *, size_t);
    char room[PATH_MAX];
    const char *mapped = map_path(path, room, 0);
    return path && !mapped ? -1 : seen(real(directory, mapped, out, size), out, size);
}

ssize_t __readlink_chk(const char *path, char *out, size_t size, size_t most)
{
    return readlink(path, out, size > most ? most : size);
}

/* Names that end in XXXXXX: the letters that were chosen go back into the caller's own path. */

#define MADE(result, fail, name, parameters, types, arguments)                                                     \
    result name parameters                                                                                         \
    {                                                                                                              \
        REAL(result, #name, types);                                                                                \
        char room[PATH_MAX], kept[PATH_MAX];                                                                       \
        const char *mapped = map_path(path, room, 1);                                                              \
        if (!mapped) return fail;                                                                                  \
        snprintf(kept, sizeof kept, "%s", mapped);                                                                 \
        result made = real arguments;                                                                              \
        size_t length = strlen(path), other = strlen(kept), tail = length < other ? length : other;                \
        if (tail > 64) tail = 64;                                                                                  \
        for (size_t at = 1; at <= tail && kept[other - at] != '/'; at++) path[length - at] = kept[other - at];     \
        return made;                                                                                               \
    }
#define AS(...) __VA_ARGS__
MADE(int, -1, mkstemp, (char *path), char *, (kept))
MADE(int, -1, mkstemp64, (char *path), char *, (kept))
MADE(int, -1, mkostemp, (char *path, int flags), AS(char *, int), (kept, flags))
MADE(int, -1, mkostemp64, (char *path, int flags), AS(char *, int), (kept, flags))
MADE(int, -1, mkstemps, (char *path, int suffix), AS(char *, int), (kept, suffix))
MADE(int, -1, mkstemps64, (char *path, int suffix), AS(char *, int), (kept, suffix))
MADE(int, -1, mkostemps, (char *path, int suffix, int flags), AS(char *, int, int), (kept, suffix, flags))
MADE(int, -1, mkostemps64, (char *path, int suffix, int flags), AS(char *, int, int), (kept, suffix, flags))

char *mkdtemp(char *path)
{
    REAL(char *, "mkdtemp", char *);
    char room[PATH_MAX];
    const char *mapped = map_path(path, room, 1);
    if (!mapped) return NULL;
    if (mapped == path) return real(path);
    if (!real(room)) return NULL;
    size_t length = strlen(path), other = strlen(room);
    memcpy(path + length - 6, room + other - 6, 6);
    return path;
}
