/* Files: a volume is seen in its place, wherever it lies on the machine. */
#include "pod.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <utime.h>
#include <sys/time.h>

/* Take "//", "/./" and "/../" out of an absolute path. */
static void tidy(const char *path, char *room)
{
    size_t used = 0;
    while (*path) {
        while (*path == '/') path++;
        size_t step = strcspn(path, "/");
        if (step == 2 && path[0] == '.' && path[1] == '.') {
            while (used && room[--used] != '/') {}
        } else if (step && !(step == 1 && *path == '.') && used + step + 2 < PATH_MAX) {
            room[used++] = '/';
            memcpy(room + used, path, step);
            used += step;
        }
        path += step;
    }
    if (!used) room[used++] = '/';
    room[used] = 0;
}

static const struct path *covering(const char *path, int real)
{
    const struct path *best = NULL;
    size_t most = 0;
    for (int each = 0; each < pod.path_count; each++) {
        const struct path *one = &pod.paths[each];
        size_t length = real ? one->real_length : one->seen_length;
        if (length > most && !strncmp(path, real ? one->real : one->seen, length) &&
            (!path[length] || path[length] == '/'))
            best = one, most = length;
    }
    return best;
}

static int untidy(const char *path)
{
    return strstr(path, "//") || strstr(path, "/./") || strstr(path, "/..") ||
           (strlen(path) > 1 && !strcmp(path + strlen(path) - 2, "/."));
}

const char *map_path(const char *path, char *room, int writing)
{
    char clean[PATH_MAX];
    if (!pod.active || !path || !pod.path_count) return path;
    if (*path != '/') {
        if (!writing || !getcwd(clean, sizeof clean)) return path;
        const struct path *here = covering(clean, 0);
        if (!here || !here->read_only) return path;
        errno = EROFS;
        return NULL;
    }
    const char *given = path;
    if (untidy(path)) {
        tidy(path, clean);
        given = clean;
    }
    const struct path *found = covering(given, 0), *own = covering(given, 1);
    if (!found) return path;
    /* A place that a shorter path hides: the kernel gives the interpreter of a script its real path. */
    if (own && own->real_length > found->seen_length) found = own;
    if (writing && found->read_only) {
        errno = EROFS;
        return NULL;
    }
    if (found == own) return path;
    size_t rest = strlen(given + found->seen_length);
    if (found->real_length + rest >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    memmove(room + found->real_length, given + found->seen_length, rest + 1);
    memcpy(room, found->real, found->real_length);
    return room;
}

void unmap_path(char *path, size_t size)
{
    char room[PATH_MAX];
    if (!pod.active || *path != '/') return;
    const struct path *found = covering(path, 1);
    if (!found || strlen(path) - found->real_length + found->seen_length >= size) return;
    snprintf(room, sizeof room, "%s", path + found->real_length);
    memcpy(path, found->seen, found->seen_length);
    strcpy(path + found->seen_length, room);
}

/* The functions of the C library that take one path. W: those that change something. */

#define ONE(result, fail, name, writing, parameters, types, arguments)                                             \
    result name parameters                                                                                         \
    {                                                                                                              \
        REAL(result, #name, types);                                                                                \
        char room[PATH_MAX];                                                                                       \
        const char *mapped = map_path(path, room, writing);                                                        \
        if (path && !mapped) return fail;                                                                          \
        return real arguments;                                                                                     \
    }
#define LIST(...) __VA_ARGS__
#define INT(name, writing, parameters, types, arguments) ONE(int, -1, name, writing, parameters, LIST types, arguments)

struct stat64;
struct statfs64;
struct statvfs64;
struct statx;
struct utimbuf;

INT(stat, 0, (const char *path, struct stat *out), (const char *, struct stat *), (mapped, out))
INT(lstat, 0, (const char *path, struct stat *out), (const char *, struct stat *), (mapped, out))
INT(stat64, 0, (const char *path, struct stat64 *out), (const char *, struct stat64 *), (mapped, out))
INT(lstat64, 0, (const char *path, struct stat64 *out), (const char *, struct stat64 *), (mapped, out))
INT(__xstat, 0, (int v, const char *path, struct stat *out), (int, const char *, struct stat *), (v, mapped, out))
INT(__lxstat, 0, (int v, const char *path, struct stat *out), (int, const char *, struct stat *), (v, mapped, out))
INT(__xstat64, 0, (int v, const char *path, struct stat64 *out), (int, const char *, struct stat64 *), (v, mapped, out))
INT(__lxstat64, 0, (int v, const char *path, struct stat64 *out), (int, const char *, struct stat64 *), (v, mapped, out))
INT(fstatat, 0, (int d, const char *path, struct stat *out, int f), (int, const char *, struct stat *, int), (d, mapped, out, f))
INT(fstatat64, 0, (int d, const char *path, struct stat64 *out, int f), (int, const char *, struct stat64 *, int), (d, mapped, out, f))
INT(__fxstatat, 0, (int v, int d, const char *path, struct stat *out, int f), (int, int, const char *, struct stat *, int), (v, d, mapped, out, f))
INT(__fxstatat64, 0, (int v, int d, const char *path, struct stat64 *out, int f), (int, int, const char *, struct stat64 *, int), (v, d, mapped, out, f))
INT(statx, 0, (int d, const char *path, int f, unsigned m, struct statx *out), (int, const char *, int, unsigned, struct statx *), (d, mapped, f, m, out))
INT(statfs, 0, (const char *path, struct statfs *out), (const char *, struct statfs *), (mapped, out))
INT(statfs64, 0, (const char *path, struct statfs64 *out), (const char *, struct statfs64 *), (mapped, out))
INT(statvfs, 0, (const char *path, struct statvfs *out), (const char *, struct statvfs *), (mapped, out))
INT(statvfs64, 0, (const char *path, struct statvfs64 *out), (const char *, struct statvfs64 *), (mapped, out))
INT(access, (mode & W_OK), (const char *path, int mode), (const char *, int), (mapped, mode))
INT(eaccess, (mode & W_OK), (const char *path, int mode), (const char *, int), (mapped, mode))
INT(euidaccess, (mode & W_OK), (const char *path, int mode), (const char *, int), (mapped, mode))
INT(faccessat, (mode & W_OK), (int d, const char *path, int mode, int f), (int, const char *, int, int), (d, mapped, mode, f))
INT(mkdir, 1, (const char *path, mode_t mode), (const char *, mode_t), (mapped, mode))
INT(mkdirat, 1, (int d, const char *path, mode_t mode), (int, const char *, mode_t), (d, mapped, mode))
INT(mkfifo, 1, (const char *path, mode_t mode), (const char *, mode_t), (mapped, mode))
INT(mknod, 1, (const char *path, mode_t mode, dev_t device), (const char *, mode_t, dev_t), (mapped, mode, device))
INT(rmdir, 1, (const char *path), (const char *), (mapped))
INT(unlink, 1, (const char *path), (const char *), (mapped))
INT(unlinkat, 1, (int d, const char *path, int f), (int, const char *, int), (d, mapped, f))
INT(remove, 1, (const char *path), (const char *), (mapped))
INT(chmod, 1, (const char *path, mode_t mode), (const char *, mode_t), (mapped, mode))
INT(lchmod, 1, (const char *path, mode_t mode), (const char *, mode_t), (mapped, mode))
INT(fchmodat, 1, (int d, const char *path, mode_t mode, int f), (int, const char *, mode_t, int), (d, mapped, mode, f))
INT(chown, 1, (const char *path, uid_t user, gid_t group), (const char *, uid_t, gid_t), (mapped, user, group))
INT(lchown, 1, (const char *path, uid_t user, gid_t group), (const char *, uid_t, gid_t), (mapped, user, group))
INT(fchownat, 1, (int d, const char *path, uid_t u, gid_t g, int f), (int, const char *, uid_t, gid_t, int), (d, mapped, u, g, f))
INT(truncate, 1, (const char *path, off_t size), (const char *, off_t), (mapped, size))
INT(truncate64, 1, (const char *path, off64_t size), (const char *, off64_t), (mapped, size))
INT(utime, 1, (const char *path, const struct utimbuf *t), (const char *, const struct utimbuf *), (mapped, t))
INT(utimes, 1, (const char *path, const struct timeval t[2]), (const char *, const struct timeval *), (mapped, t))
INT(lutimes, 1, (const char *path, const struct timeval t[2]), (const char *, const struct timeval *), (mapped, t))
INT(utimensat, 1, (int d, const char *path, const struct timespec t[2], int f), (int, const char *, const struct timespec *, int), (d, mapped, t, f))
INT(chdir, 0, (const char *path), (const char *), (mapped))
INT(creat, 1, (const char *path, mode_t mode), (const char *, mode_t), (mapped, mode))
INT(creat64, 1, (const char *path, mode_t mode), (const char *, mode_t), (mapped, mode))
INT(__open_2, (flags & O_ACCMODE), (const char *path, int flags), (const char *, int), (mapped, flags))
INT(__open64_2, (flags & O_ACCMODE), (const char *path, int flags), (const char *, int), (mapped, flags))
INT(__openat_2, (flags & O_ACCMODE), (int d, const char *path, int flags), (int, const char *, int), (d, mapped, flags))
INT(__openat64_2, (flags & O_ACCMODE), (int d, const char *path, int flags), (int, const char *, int), (d, mapped, flags))
INT(inotify_add_watch, 0, (int fd, const char *path, uint32_t mask), (int, const char *, uint32_t), (fd, mapped, mask))
ONE(DIR *, NULL, opendir, 0, (const char *path), const char *, (mapped))
ONE(ssize_t, -1, getxattr, 0, (const char *path, const char *n, void *v, size_t s), LIST(const char *, const char *, void *, size_t), (mapped, n, v, s))
ONE(ssize_t, -1, lgetxattr, 0, (const char *path, const char *n, void *v, size_t s), LIST(const char *, const char *, void *, size_t), (mapped, n, v, s))
ONE(ssize_t, -1, listxattr, 0, (const char *path, char *v, size_t s), LIST(const char *, char *, size_t), (mapped, v, s))
ONE(ssize_t, -1, llistxattr, 0, (const char *path, char *v, size_t s), LIST(const char *, char *, size_t), (mapped, v, s))
INT(setxattr, 1, (const char *path, const char *n, const void *v, size_t s, int f), (const char *, const char *, const void *, size_t, int), (mapped, n, v, s, f))

#define writes(mode) (strpbrk(mode, "wa+") != NULL)
ONE(FILE *, NULL, fopen, writes(mode), (const char *path, const char *mode), LIST(const char *, const char *), (mapped, mode))
ONE(FILE *, NULL, fopen64, writes(mode), (const char *path, const char *mode), LIST(const char *, const char *), (mapped, mode))
ONE(FILE *, NULL, freopen, writes(mode), (const char *path, const char *mode, FILE *f), LIST(const char *, const char *, FILE *), (mapped, mode, f))
ONE(FILE *, NULL, freopen64, writes(mode), (const char *path, const char *mode, FILE *f), LIST(const char *, const char *, FILE *), (mapped, mode, f))

/* open and its like, whose mode is there only when a file may be made. */

#define OPEN(name)                                                                                                 \
    int name(const char *path, int flags, ...)                                                                     \
    {                                                                                                              \
        REAL(int, #name, const char *, int, ...);                                                                  \
        va_list more;                                                                                              \
        va_start(more, flags);                                                                                     \
        mode_t mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0;              \
        va_end(more);                                                                                              \
        char room[PATH_MAX];                                                                                       \
        const char *mapped = map_path(path, room, flags & (O_ACCMODE | O_CREAT | O_TRUNC));                        \
        return path && !mapped ? -1 : real(mapped, flags, mode);                                                   \
    }
#define OPENAT(name)                                                                                               \
    int name(int directory, const char *path, int flags, ...)                                                      \
    {                                                                                                              \
        REAL(int, #name, int, const char *, int, ...);                                                             \
        va_list more;                                                                                              \
        va_start(more, flags);                                                                                     \
        mode_t mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0;              \
        va_end(more);                                                                                              \
        char room[PATH_MAX];                                                                                       \
        int writing = directory == AT_FDCWD || (path && *path == '/') ? flags & (O_ACCMODE | O_CREAT | O_TRUNC) : 0; \
        const char *mapped = map_path(path, room, writing);                                                        \
        return path && !mapped ? -1 : real(directory, mapped, flags, mode);                                        \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

/* Two paths. */

#define TWO(name, first_writes, parameters, types, arguments)                                                      \
    int name parameters                                                                                            \
    {                                                                                                              \
        REAL(int, #name, LIST types);                                                                              \
        char room[PATH_MAX], second[PATH_MAX];                                                                     \
        const char *from = map_path(a, room, first_writes), *to = map_path(b, second, 1);                          \
        return from && to ? real arguments : -1;                                                                   \
    }
TWO(rename, 1, (const char *a, const char *b), (const char *, const char *), (from, to))
TWO(renameat, 1, (int d, const char *a, int e, const char *b), (int, const char *, int, const char *), (d, from, e, to))
TWO(renameat2, 1, (int d, const char *a, int e, const char *b, unsigned f), (int, const char *, int, const char *, unsigned), (d, from, e, to, f))
TWO(link, 0, (const char *a, const char *b), (const char *, const char *), (from, to))
TWO(linkat, 0, (int d, const char *a, int e, const char *b, int f), (int, const char *, int, const char *, int), (d, from, e, to, f))

/* What a link says is not looked up, and stays as it is given. */
int symlink(const char *target, const char *path)
{
    REAL(int, "symlink", const char *, const char *);
    char room[PATH_MAX];
    const char *mapped = map_path(path, room, 1);
    return mapped ? real(target, mapped) : -1;
}

int symlinkat(const char *target, int directory, const char *path)
{
    REAL(int, "symlinkat", const char *, int, const char *);
    char room[PATH_MAX];
    const char *mapped = map_path(path, room, 1);
    return mapped ? real(target, directory, mapped) : -1;
}

/* Shared memory is a file below /dev/shm, unless a volume is there. */
int shm_open(const char *name, int flags, mode_t mode)
{
    REAL(int, "shm_open", const char *, int, mode_t);
    char path[NAME_MAX + 16], room[PATH_MAX];
    snprintf(path, sizeof path, "/dev/shm/%.255s", name + (*name == '/'));
    return map_path(path, room, 0) == path ? real(name, flags, mode)
                                           : open(path, flags | O_NOFOLLOW | O_CLOEXEC, mode);
}

int shm_unlink(const char *name)
{
    REAL(int, "shm_unlink", const char *);
    char path[NAME_MAX + 16], room[PATH_MAX];
    snprintf(path, sizeof path, "/dev/shm/%.255s", name + (*name == '/'));
    return map_path(path, room, 0) == path ? real(name) : unlink(path);
}
