/* The calls of the kernel. After a cut all of them get EIO. */
#include "forgetful.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#define FOREVER_S 1e6 /* nobody but the kernel changes anything: it may keep what it knows */

/* ---- attributes and names ---- */

static struct stat attributes(fuse_ino_t number) {
    const inode *i = store_inode(&memory, (uint32_t)number);
    struct stat st = {.st_ino = number,
                      .st_mode = i->mode,
                      .st_nlink = i->links,
                      .st_uid = i->uid,
                      .st_gid = i->gid,
                      .st_size = (off_t)i->length,
                      .st_blksize = PAGE_BYTES,
                      .st_atim = i->changed,
                      .st_mtim = i->changed,
                      .st_ctim = i->changed};
    st.st_blocks = (blkcnt_t)((i->length + SECTOR_BYTES - 1) / SECTOR_BYTES);
    return st;
}

static struct fuse_entry_param entry_of(uint32_t number) {
    return (struct fuse_entry_param){
        .ino = number, .attr = attributes(number), .attr_timeout = FOREVER_S, .entry_timeout = FOREVER_S};
}

static void op_init(void *data, struct fuse_conn_info *connection) {
    (void)data;
    connection->want &= ~(unsigned)(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
}

static void op_lookup(fuse_req_t request, fuse_ino_t parent, const char *name) {
    uint32_t number;
    int result = frozen ? -EIO : store_lookup(&memory, (uint32_t)parent, name, &number);
    if (result != 0) {
        fuse_reply_err(request, -result);
        return;
    }
    struct fuse_entry_param e = entry_of(number);
    fuse_reply_entry(request, &e);
}

static void op_getattr(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file) {
    (void)file;
    struct stat st = attributes(number);
    if (frozen) fuse_reply_err(request, EIO);
    else fuse_reply_attr(request, &st, FOREVER_S);
}

static void op_setattr(fuse_req_t request, fuse_ino_t number, struct stat *to, int which, struct fuse_file_info *file) {
    (void)file;
    if ((which & FUSE_SET_ATTR_SIZE) ? !powered('w') : frozen) {
        fuse_reply_err(request, EIO);
        return;
    }
    inode *i = store_inode(&memory, (uint32_t)number);
    if (which & FUSE_SET_ATTR_MODE) i->mode = (i->mode & S_IFMT) | (to->st_mode & 07777);
    if (which & FUSE_SET_ATTR_UID) i->uid = to->st_uid;
    if (which & FUSE_SET_ATTR_GID) i->gid = to->st_gid;
    if (which & FUSE_SET_ATTR_MTIME) i->changed = to->st_mtim;
    if (which & FUSE_SET_ATTR_SIZE) store_resize(&memory, (uint32_t)number, (uint64_t)to->st_size);
    struct stat st = attributes(number);
    fuse_reply_attr(request, &st, FOREVER_S);
}

static int make(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_entry_param *e) {
    uint32_t number;
    if (!powered('n')) return -EIO;
    int result = store_make(&memory, (uint32_t)parent, name, mode, &number);
    if (result != 0) return result;
    inode *i = store_inode(&memory, number);
    i->uid = fuse_req_ctx(request)->uid;
    i->gid = fuse_req_ctx(request)->gid;
    *e = entry_of(number);
    return 0;
}

static void op_mknod(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode, dev_t device) {
    (void)device;
    struct fuse_entry_param e;
    int result = make(request, parent, name, mode, &e);
    if (result != 0) fuse_reply_err(request, -result);
    else fuse_reply_entry(request, &e);
}

static void op_mkdir(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode) {
    op_mknod(request, parent, name, S_IFDIR | mode, 0);
}

static void op_create(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode,
                      struct fuse_file_info *file) {
    struct fuse_entry_param e;
    int result = make(request, parent, name, mode, &e);
    file->keep_cache = 1;
    if (result != 0) fuse_reply_err(request, -result);
    else fuse_reply_create(request, &e, file);
}

static void op_unlink(fuse_req_t request, fuse_ino_t parent, const char *name) {
    fuse_reply_err(request, powered('n') ? -store_remove(&memory, (uint32_t)parent, name, false) : EIO);
}

static void op_rmdir(fuse_req_t request, fuse_ino_t parent, const char *name) {
    fuse_reply_err(request, powered('n') ? -store_remove(&memory, (uint32_t)parent, name, true) : EIO);
}

static void op_rename(fuse_req_t request, fuse_ino_t from, const char *old, fuse_ino_t to, const char *new,
                      unsigned flags) {
    bool on = powered('n');
    fuse_reply_err(request, on ? -store_rename(&memory, (uint32_t)from, old, (uint32_t)to, new, flags) : EIO);
}

/* ---- directories are listed as they were when opened ---- */

typedef struct {
    size_t length;
    char bytes[];
} listing;

static void op_opendir(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file) {
    if (frozen) {
        fuse_reply_err(request, EIO);
        return;
    }
    const inode *d = store_inode(&memory, (uint32_t)number);
    size_t room = 2 * 64;
    for (size_t i = 0; i < d->names.count; i++)
        room += fuse_add_direntry(request, NULL, 0, d->names.items[i].name, NULL, 0);
    listing *l = calloc(1, sizeof(*l) + room);
    if (l == NULL) abort();
    struct stat st = {.st_ino = number, .st_mode = S_IFDIR};
    for (size_t i = 0; i < d->names.count + 2; i++) {
        const char *name = i == 0 ? "." : i == 1 ? ".." : d->names.items[i - 2].name;
        if (i >= 2) st = attributes(d->names.items[i - 2].inode);
        size_t need = fuse_add_direntry(request, NULL, 0, name, NULL, 0);
        fuse_add_direntry(request, l->bytes + l->length, room - l->length, name, &st, (off_t)(l->length + need));
        l->length += need;
    }
    file->fh = (uint64_t)(uintptr_t)l;
    fuse_reply_open(request, file);
}

static void op_readdir(fuse_req_t request, fuse_ino_t number, size_t size, off_t at, struct fuse_file_info *file) {
    (void)number;
    const listing *l = (const listing *)(uintptr_t)file->fh;
    size_t left = (size_t)at < l->length ? l->length - (size_t)at : 0;
    if (frozen) fuse_reply_err(request, EIO);
    else fuse_reply_buf(request, l->bytes + at, left < size ? left : size);
}

static void op_releasedir(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file) {
    (void)number;
    free((void *)(uintptr_t)file->fh);
    fuse_reply_err(request, 0);
}

/* ---- files ---- */

static void op_open(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file) {
    (void)number;
    file->keep_cache = 1;
    if (frozen) fuse_reply_err(request, EIO);
    else fuse_reply_open(request, file);
}

static void op_release(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file) {
    (void)number;
    (void)file;
    fuse_reply_err(request, 0);
}

static void op_read(fuse_req_t request, fuse_ino_t number, size_t size, off_t at, struct fuse_file_info *file) {
    (void)file;
    char *bytes = frozen ? NULL : malloc(size);
    if (bytes == NULL) fuse_reply_err(request, EIO);
    else fuse_reply_buf(request, bytes, store_read(&memory, (uint32_t)number, bytes, size, (uint64_t)at));
    free(bytes);
}

static void op_write(fuse_req_t request, fuse_ino_t number, const char *bytes, size_t size, off_t at,
                     struct fuse_file_info *file) {
    (void)file;
    int result = powered('w') ? store_write(&memory, (uint32_t)number, bytes, size, (uint64_t)at) : -EIO;
    if (result != 0) fuse_reply_err(request, -result);
    else fuse_reply_write(request, size);
}

static void op_fallocate(fuse_req_t request, fuse_ino_t number, int mode, off_t from, off_t length,
                         struct fuse_file_info *file) {
    (void)file;
    uint64_t end = (uint64_t)(from + length);
    int result = 0;
    if (!powered('w')) result = EIO;
    else if (mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE))
        result = -store_zero(&memory, (uint32_t)number, (uint64_t)from, (uint64_t)length);
    else if (mode == 0 && end > store_inode(&memory, (uint32_t)number)->length)
        result = -store_resize(&memory, (uint32_t)number, end);
    else if (mode != 0 && mode != FALLOC_FL_KEEP_SIZE) result = EOPNOTSUPP;
    fuse_reply_err(request, result);
}

static void op_fsync(fuse_req_t request, fuse_ino_t number, int data_only, struct fuse_file_info *file) {
    (void)data_only; /* both bring the length that reading needs; there is nothing else to leave out */
    (void)file;
    if (powered('s')) start_sync(request, (uint32_t)number);
    else fuse_reply_err(request, EIO);
}

static void op_statfs(fuse_req_t request, fuse_ino_t number) {
    (void)number;
    struct statvfs st = {.f_bsize = PAGE_BYTES,
                         .f_frsize = PAGE_BYTES,
                         .f_blocks = 1u << 28,
                         .f_bfree = 1u << 27,
                         .f_bavail = 1u << 27,
                         .f_files = 1u << 20,
                         .f_ffree = 1u << 19,
                         .f_namemax = NAME_BYTES_MAX};
    fuse_reply_statfs(request, &st);
}

const struct fuse_lowlevel_ops calls = {
    .init = op_init,
    .lookup = op_lookup,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .mknod = op_mknod,
    .mkdir = op_mkdir,
    .unlink = op_unlink,
    .rmdir = op_rmdir,
    .rename = op_rename,
    .open = op_open,
    .read = op_read,
    .write = op_write,
    .release = op_release,
    .fsync = op_fsync,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .releasedir = op_releasedir,
    .fsyncdir = op_fsync,
    .statfs = op_statfs,
    .create = op_create,
    .fallocate = op_fallocate,
};
