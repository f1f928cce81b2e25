/* Programs that a program starts: found in their place, and processes of the same pod.
 *
 * A child that is given an environment of its own would leave the pod; the two variables go with it.
 */
#include "pod.h"

#include <alloca.h>
#include <spawn.h>
#include <stdio.h>
#include <unistd.h>

extern char **environ;

static const char *const kept[] = {"LD_PRELOAD", "TRAINYARD_POD"};
enum { kept_count = 2 };

static int has(char *const *given, const char *name)
{
    size_t length = strlen(name);
    for (; given && *given; given++)
        if (!strncmp(*given, name, length) && (*given)[length] == '=') return 1;
    return 0;
}

/* The variables that are missing, in memory that outlives an exec; nothing may be allocated after a vfork. */
#define COMPLETE(complete, given)                                                                                  \
    char **complete = (char **)(given);                                                                            \
    if (pod.active) {                                                                                              \
        size_t count = 0, more = 0;                                                                                \
        while ((given) && (given)[count]) count++;                                                                 \
        complete = alloca((count + kept_count + 1) * sizeof *complete);                                            \
        for (size_t each = 0; each < count; each++) complete[each] = (given)[each];                                \
        for (int each = 0; each < kept_count; each++) {                                                            \
            const char *value = getenv(kept[each]);                                                                \
            if (!value || has(given, kept[each])) continue;                                                        \
            char *line = alloca(strlen(kept[each]) + strlen(value) + 2);                                           \
            strcpy(line, kept[each]), strcat(line, "="), strcat(line, value);                                      \
            complete[count + more++] = line;                                                                       \
        }                                                                                                          \
        complete[count + more] = NULL;                                                                             \
    }

#define EXEC(name)                                                                                                 \
    int name(const char *path, char *const arguments[], char *const environment[])                                 \
    {                                                                                                              \
        REAL(int, #name, const char *, char *const *, char *const *);                                              \
        char room[PATH_MAX];                                                                                       \
        const char *mapped = map_path(path, room, 0);                                                              \
        if (path && !mapped) return -1;                                                                            \
        COMPLETE(complete, environment);                                                                           \
        return real(mapped, arguments, complete);                                                                  \
    }
EXEC(execve)
EXEC(execvpe)

int execv(const char *path, char *const arguments[])
{
    return execve(path, arguments, environ);
}

int execvp(const char *path, char *const arguments[])
{
    return execvpe(path, arguments, environ);
}

#define SPAWN(name)                                                                                                \
    int name(pid_t *child, const char *path, const posix_spawn_file_actions_t *actions,                            \
             const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[])              \
    {                                                                                                              \
        REAL(int, #name, pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,     \
             char *const *, char *const *);                                                                        \
        char room[PATH_MAX];                                                                                       \
        const char *mapped = map_path(path, room, 0);                                                              \
        if (path && !mapped) return errno;                                                                         \
        COMPLETE(complete, environment);                                                                           \
        return real(child, mapped, actions, attributes, arguments, complete);                                      \
    }
SPAWN(posix_spawn)
SPAWN(posix_spawnp)

/* The call is the function's last act, so that the caller's own search path is still the one that counts. */
void *dlopen(const char *path, int flags)
{
    REAL(void *, "dlopen", const char *, int);
    static __thread char room[PATH_MAX];
    return real(path && *path == '/' ? map_path(path, room, 0) : path, flags);
}
