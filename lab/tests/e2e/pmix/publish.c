/* Ranks on two nodes publish names for each other by PMIx, without any MPI. Between two steps each waits for a file.
 * publish FOLDER */
#include "files.h"

static void must(pmix_status_t status, pmix_status_t expected, const char *what)
{
    if (status != expected) {
        fprintf(stderr, "rank %u: %s: %s (%d)\n", me.rank, what, PMIx_Error_string(status), status);
        exit(9);
    }
}

static pmix_status_t publish(const char *key, const char *value)
{
    pmix_info_t info;
    pmix_status_t status;

    PMIX_INFO_LOAD(&info, key, value, PMIX_STRING);
    status = PMIx_Publish(&info, 1);
    PMIX_INFO_DESTRUCT(&info);
    return status;
}

static pmix_status_t unpublish(const char *key)
{
    char *keys[] = {(char *)key, NULL};

    return PMIx_Unpublish(keys, NULL, 0);
}

static pmix_status_t lookup(const char *key, const char *expected, pmix_rank_t by)
{
    pmix_pdata_t data;
    pmix_status_t status;

    PMIX_PDATA_CONSTRUCT(&data);
    strncpy(data.key, key, PMIX_MAX_KEYLEN);
    status = PMIx_Lookup(&data, 1, NULL, 0);
    if (status == PMIX_SUCCESS && expected
        && (data.value.type != PMIX_STRING || strcmp(data.value.data.string, expected) != 0 || data.proc.rank != by))
        exit(7);
    PMIX_PDATA_DESTRUCT(&data);
    return status;
}

int main(int argc, char **argv)
{
    pmix_data_range_t range = PMIX_RANGE_GLOBAL;
    pmix_info_t wide[2];

    folder = argc > 1 ? argv[1] : ".";
    must(PMIx_Init(&me, NULL, 0), PMIX_SUCCESS, "init");
    must(lookup("ocean", NULL, 0), PMIX_ERR_NOT_FOUND, "what nobody published");
    PMIx_Fence(NULL, 0, NULL, 0);
    if (me.rank == 1) {
        must(publish("ocean", "port of 1"), PMIX_SUCCESS, "a value is published");
        must(publish("ocean", "another"), PMIX_ERR_DUPLICATE_KEY, "twice");
    }
    PMIX_INFO_LOAD(&wide[0], "wide", "value", PMIX_STRING);
    PMIX_INFO_LOAD(&wide[1], PMIX_RANGE, &range, PMIX_DATA_RANGE);
    must(PMIx_Publish(wide, 2), PMIX_ERR_NOT_SUPPORTED, "for all launches");
    PMIx_Fence(NULL, 0, NULL, 0);
    here("published");
    await("go");
    must(lookup("ocean", "port of 1", 1), PMIX_SUCCESS, "what was acknowledged");
    if (me.rank != 1)
        must(publish("ocean", "another"), PMIX_ERR_DUPLICATE_KEY, "twice, elsewhere");
    here("found");
    await("ask");
    here("asks");
    if (me.rank == 1)
        must(unpublish("ocean"), PMIX_SUCCESS, "a value is taken back");
    PMIx_Fence(NULL, 0, NULL, 0);
    must(lookup("ocean", NULL, 0), PMIX_ERR_NOT_FOUND, "what was taken back");
    printf("rank %u knows\n", me.rank);
    fflush(stdout);
    PMIx_Finalize(NULL, 0);
    return 0;
}
