/* Room on the disk of the log: sends are refused before it is full, so that what must go on (offsets, index entries,
 * metadata, deletions, the next start) has room. The same for its inodes, which new segments and partitions use up.
 * Loop thread only. */
#ifndef SHARDD_ROOM_H
#define SHARDD_ROOM_H
#include <stdbool.h>
#include <stdint.h>

#define ROOM_PART 16u     /* of the file system at most is kept free, however large `reserve_bytes` is */
#define ROOM_INODES 4096u /* kept free, where their number is fixed; a roll takes three */

typedef struct room {
    int fd;                 /* a directory of the file system; -1: not looked at, there is always room */
    uint32_t shards;        /* that share it */
    uint64_t reserve_bytes; /* the setting */
    uint64_t budget;        /* bytes that may be written before the next look */
    uint64_t free_bytes;    /* at the last look */
    uint64_t low_bytes;     /* below it sends are refused */
    uint64_t free_inodes;   /* at the last look */
    uint64_t low_inodes;    /* as low_bytes; 0: there is no fixed number */
    bool refused;           /* sends are refused until half as much again as the reserve is free, of both */
    bool read_only;         /* the file system was mounted so, or has become so by an error */
} room;

static inline bool room_is_short(uint64_t free, uint64_t low, bool refused_before) {
    return free < (refused_before ? low + low / 2 : low);
}

int room_open(room *r, const char *directory, uint64_t reserve_bytes, uint32_t shards); /* 0 or -errno; NULL: off */
void room_close(room *r);
bool room_look(room *r);                 /* one fstatvfs; true when `refused` has changed */
bool room_take(room *r, uint64_t bytes); /* false: a send of so many bytes is refused */
/* The same for bytes that may be written later, if ever. Half of what the budget has stays for those that are. */
bool room_take_ahead(room *r, uint64_t bytes);
#endif
