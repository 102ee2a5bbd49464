/* Results with named fields: struct sequences, which compare and unpack as the tuples that they are. */
#include "binding.h"

#include <string.h>

#include "base/assert.h"

#define FIELD(name) {#name, NULL}
#define FIELDS(...) ((PyStructSequence_Field[]){__VA_ARGS__, {NULL, NULL}})
#define RESULT(name, doc, ...) \
    {"shardd.engine._native." #name, doc, FIELDS(__VA_ARGS__), \
     (int)(sizeof FIELDS(__VA_ARGS__) / sizeof(PyStructSequence_Field)) - 1}

static PyStructSequence_Desc descriptions[SHARDD_RESULTS] = {
    [SHARDD_STATS] = RESULT(StatsSlot, "A slot of the shared statistics.", FIELD(incarnation), FIELD(next_offset),
                            FIELD(size_bytes), FIELD(messages_count), FIELD(segments_count), FIELD(durable_offset),
                            FIELD(first_offset), FIELD(state), FIELD(unseen)),
    [SHARDD_STATS_SUMS] = RESULT(StatsSums, "Over partitions.", FIELD(segments_count), FIELD(size_bytes),
                                 FIELD(messages_count), FIELD(appended), FIELD(not_durable), FIELD(read_only)),
    [SHARDD_GROUP_LAG] = RESULT(GroupLag, "How far a group is behind.", FIELD(partitions), FIELD(without_offset),
                                FIELD(messages), FIELD(since_us)),
    [SHARDD_SAMPLE] = RESULT(Sample, "A traced request.", FIELD(code), FIELD(dialect), FIELD(user_id),
                             FIELD(connection), FIELD(status), FIELD(length), FIELD(began_us), FIELD(took_us),
                             FIELD(begin)),
    [SHARDD_TURN] = RESULT(Turn, "What a turn brought.", FIELD(ready), FIELD(events), FIELD(longest_us)),
    [SHARDD_SEGMENT] = RESULT(SegmentInfo, "A segment of a partition.", FIELD(start_offset), FIELD(log_bytes),
                              FIELD(records), FIELD(first_timestamp), FIELD(last_timestamp), FIELD(absent),
                              FIELD(layout), FIELD(counted_us)),
    [SHARDD_WITHHELD_RANGE] = RESULT(WithheldRange, "Offsets that are not given out.", FIELD(start), FIELD(end),
                                     FIELD(isolated)),
    [SHARDD_RECOVERED] = RESULT(RecoveredPartition, "A partition that needed no decision.", FIELD(segments),
                                FIELD(groups), FIELD(unsealed), FIELD(scanned_bytes), FIELD(durable_end),
                                FIELD(log_start)),
    [SHARDD_DELETED_SEGMENTS] = RESULT(DeletedSegments, "What became of a deletion.", FIELD(status), FIELD(deleted),
                                       FIELD(busy)),
    [SHARDD_CLEANED] = RESULT(Cleaned, "One step of the retention.", FIELD(status), FIELD(removed), FIELD(pending),
                              FIELD(held), FIELD(leased_bytes), FIELD(overtaken), FIELD(ahead)),
    [SHARDD_OLDEST] = RESULT(OldestSegment, "What a limit by size would take.", FIELD(first_timestamp), FIELD(bytes),
                             FIELD(droppable), FIELD(only_active), FIELD(waits)),
    [SHARDD_CLOCK] = RESULT(ExpiryClock, "By which everything ages, and what is stamped.", FIELD(now_us),
                            FIELD(stamp_us), FIELD(jump_us), FIELD(jumps), FIELD(believed_doubted_us),
                            FIELD(stamps_doubted_us), FIELD(doubts), FIELD(doubts_ended), FIELD(since_boot_us)),
    [SHARDD_STORED_OFFSET] = RESULT(StoredOffset, "How far a consumer is.", FIELD(kind), FIELD(consumer), FIELD(value)),
    [SHARDD_UNUSED_OFFSET] = RESULT(UnusedOffset, "A stored offset and its last use.", FIELD(kind), FIELD(consumer),
                                    FIELD(value), FIELD(used_us), FIELD(owner), FIELD(name)),
    [SHARDD_UNUSED_PAGE] = RESULT(UnusedPage, "Stored offsets by their last use.", FIELD(status), FIELD(next),
                                  FIELD(offsets)),
    [SHARDD_SCAN] = RESULT(Scan, "What a scan of records found.", FIELD(valid_bytes), FIELD(records),
                           FIELD(next_offset), FIELD(first_timestamp), FIELD(last_timestamp), FIELD(fault)),
    [SHARDD_INDEXED_SCAN] = RESULT(IndexedScan, "The same and the index.", FIELD(valid_bytes), FIELD(records),
                                   FIELD(next_offset), FIELD(first_timestamp), FIELD(last_timestamp), FIELD(fault),
                                   FIELD(entries)),
    [SHARDD_FOUND_RECORD] = RESULT(FoundRecord, "Where a record is.", FIELD(position), FIELD(offset)),
    [SHARDD_SEND_REQUEST] = RESULT(SendRequest, "What a SEND_MESSAGES says.", FIELD(stream), FIELD(topic),
                                   FIELD(partitioning), FIELD(partition_id), FIELD(key), FIELD(messages_count),
                                   FIELD(messages_position)),
    [SHARDD_SENT_BATCH] = RESULT(SentBatch, "A batch of earlier records.", FIELD(status), FIELD(messages_count),
                                 FIELD(batch)),
    [SHARDD_SEAT_PARTITION] = RESULT(SeatPartition, "How far a member is.", FIELD(partition), FIELD(polled),
                                     FIELD(committed)),
    [SHARDD_SEAT_STATE] = RESULT(SeatState, "A membership that was lent.", FIELD(rotation), FIELD(last_polled),
                                 FIELD(busy), FIELD(auto_commit), FIELD(partitions)),
    [SHARDD_ACCEPTED] = RESULT(AcceptedEvent, "A new connection.", FIELD(connection), FIELD(address), FIELD(transport)),
    [SHARDD_CLOSED] = RESULT(ClosedEvent, "The end of a connection.", FIELD(connection), FIELD(memory)),
    [SHARDD_REQUEST] = RESULT(RequestEvent, "A request for Python.", FIELD(connection), FIELD(code), FIELD(payload),
                              FIELD(user_id), FIELD(authenticated), FIELD(dialect)),
    [SHARDD_ROUTE_MISS] = RESULT(RouteMissEvent, "A request without a route.", FIELD(connection), FIELD(code),
                                 FIELD(stream), FIELD(topic), FIELD(user_id), FIELD(attempt)),
    [SHARDD_MOVE] = RESULT(MoveEvent, "A connection that is to move.", FIELD(connection), FIELD(target_shard)),
    [SHARDD_MOVED_IN] = RESULT(MovedInEvent, "A connection that came.", FIELD(connection), FIELD(address),
                               FIELD(session_state), FIELD(user_id), FIELD(authenticated)),
    [SHARDD_DOUBT] = RESULT(DoubtEvent, "Log and index contradict.", FIELD(namespace), FIELD(segment)),
    [SHARDD_POISONED] = RESULT(PoisonedEvent, "A partition is read only.", FIELD(namespace), FIELD(errno)),
    [SHARDD_GROUP_POLLED] = RESULT(GroupPolledEvent, "The end of a member's request.", FIELD(connection),
                                   FIELD(messages_count), FIELD(offset), FIELD(stored)),
    [SHARDD_ROOM] = RESULT(RoomEvent, "Room on the disk.", FIELD(refused), FIELD(free_bytes), FIELD(free_inodes)),
    [SHARDD_SYNCED] = RESULT(SyncedEvent, "The end of a sync.", FIELD(token), FIELD(status)),
    [SHARDD_ROLLED] = RESULT(RolledEvent, "A segment is sealed.", FIELD(namespace), FIELD(start_offset)),
    [SHARDD_RESUMED] = RESULT(ResumedEvent, "A paused partition has got messages.", FIELD(namespace)),
    [SHARDD_CERTIFIED] = RESULT(CertifiedEvent, "A client has shown a certificate.", FIELD(connection), FIELD(names)),
    [SHARDD_CALL] = RESULT(CallEvent, "How a call of Python goes on.", FIELD(token), FIELD(outcome), FIELD(status),
                           FIELD(current_offset), FIELD(messages_count), FIELD(timestamp_us), FIELD(total_bytes),
                           FIELD(records)),
};
static PyTypeObject *types[SHARDD_RESULTS];

int shardd_results_add(PyObject *module) {
    for (int i = 0; i < SHARDD_RESULTS; i++) {
        if (types[i] == NULL) types[i] = PyStructSequence_NewType(&descriptions[i]);
        const char *name = strrchr(descriptions[i].name, '.') + 1;
        if (types[i] == NULL || PyModule_AddObjectRef(module, name, (PyObject *)types[i]) != 0) return -1;
    }
    return 0;
}

PyObject *shardd_result_of(shardd_result_type type, PyObject *const *items, int count) {
    ASSERT_ALWAYS(count == descriptions[type].n_in_sequence);
    bool whole = true;
    for (int i = 0; i < count; i++) whole = whole && items[i] != NULL;
    PyObject *result = whole ? PyStructSequence_New(types[type]) : NULL;
    for (int i = 0; i < count; i++) {
        if (result != NULL) PyStructSequence_SetItem(result, i, items[i]);
        else Py_XDECREF(items[i]);
    }
    return result;
}
