/* Brings what a partition holds in memory into its files, and cuts what files hold behind their records. Private to
 * this folder. */
#ifndef SHARDD_PARTITION_SAVE_H
#define SHARDD_PARTITION_SAVE_H
#include "log/files.h"
#include "log/partition/state.h"

/* Writes the journal. 0, CANNOT_WRITE_TO_FILE (10006: the journal stays, the next call tries again) or the status that
 * ended all writes. */
uint32_t partition_save(partition *p);
/* Writes waiting index entries. 0, or CANNOT_SAVE_INDEX_TO_SEGMENT (4007; an EIO poisons). */
uint32_t partition_index_flush(partition *p);
/* Gives back the reserved blocks of the active log, also those of a process before this one. */
void partition_give_back(partition *p);
/* Cuts what the active log holds behind its records. 0 or errno. */
int partition_cut_ahead(partition *p);
/* The same of a write that was refused (partition_has_refused), where no append may come any more. */
void partition_cut_refused(partition *p);
/* Writes what the last complete sync covered into the manifest of the active segment, however little it is. */
void partition_checkpoint_write(partition *p);
/* Writes the log start into that manifest, unless the manifest knows it. */
void partition_write_start(partition *p);

/* Nothing stays of a write that failed when the file had `end` bytes. The status. */
uint32_t partition_undo_write(partition *p, segment *s, int fd, uint64_t end);
/* Removes bytes behind the records that could be taken for some. 0 or errno. */
static inline int partition_cut_stale(partition *p, const segment *s, int fd) {
    uint64_t end = partition_file_end(p, s);
    bool must = space_must_cut(&p->space, end, p->level == LEVEL_DURABLE);
    return must ? space_cut_back(&p->space, p->files.disk, fd, end) : 0;
}
/* Writes the journal and `count` further parts, at parts[1], behind the end of the file; parts[0] is for the journal.
 * Nothing of them stays when the write fails. 0 or a status. */
static inline uint32_t partition_write_behind(partition *p, segment *s, int fd, struct iovec *parts, size_t count) {
    uint64_t end = partition_file_end(p, s), written;
    bool saves = !journal_is_empty(&p->journal);
    parts[0] = journal_part(&p->journal);
    s->log_dirty = true; /* also when it fails: the sync has to see this error too */
    partition_dirty_active(p);
    if (file_write(p->files.disk, fd, saves ? parts : parts + 1, count + saves, end, &written) == 0) {
        journal_written(&p->journal);
        return 0;
    }
    return partition_undo_write(p, s, fd, end + written);
}
#endif
