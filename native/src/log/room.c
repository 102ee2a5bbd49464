#include "log/room.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

int room_open(room *r, const char *directory, uint64_t reserve_bytes, uint32_t shards) {
    *r = (room){.fd = -1, .reserve_bytes = reserve_bytes, .shards = shards};
    if (directory == NULL || reserve_bytes == 0) return 0;
    r->fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->fd < 0) return -errno;
    room_look(r);
    return 0;
}

void room_close(room *r) {
    if (r->fd >= 0) close(r->fd);
    r->fd = -1;
}

bool room_look(room *r) {
    struct statvfs s;
    if (r->fd < 0 || fstatvfs(r->fd, &s) != 0) return false;
    bool before = r->refused;
    uint64_t part = (uint64_t)s.f_blocks * s.f_frsize / ROOM_PART;
    r->low_bytes = r->reserve_bytes < part ? r->reserve_bytes : part;
    r->free_bytes = (uint64_t)s.f_bavail * s.f_frsize;
    r->free_inodes = s.f_favail;
    r->read_only = (s.f_flag & ST_RDONLY) != 0;
    r->low_inodes = s.f_files / ROOM_PART < ROOM_INODES ? s.f_files / ROOM_PART : ROOM_INODES;
    r->refused = room_is_short(r->free_bytes, r->low_bytes, before) ||
                 room_is_short(r->free_inodes, r->low_inodes, before);
    /* Every shard may write its part of half of what is left: together they come closer and closer to the reserve. */
    r->budget = r->refused ? 0 : (r->free_bytes - r->low_bytes) / 2 / r->shards;
    return r->refused != before;
}

bool room_take(room *r, uint64_t bytes) {
    if (r->fd < 0) return true;
    if (!r->refused && r->budget < bytes) {
        room_look(r);
        if (!r->refused && r->free_bytes - r->low_bytes < bytes) {
            r->refused = r->free_bytes < r->low_bytes + r->low_bytes / 2; /* else smaller ones go on */
            return false;
        }
        if (r->budget < bytes) r->budget = r->refused ? 0 : bytes; /* a large one takes more than its shard's part */
    }
    if (r->refused) return false;
    r->budget -= bytes;
    return true;
}

bool room_take_ahead(room *r, uint64_t bytes) {
    if (r->fd < 0) return true;
    if (r->refused || r->budget / 2 < bytes) return false;
    r->budget -= bytes;
    return true;
}
