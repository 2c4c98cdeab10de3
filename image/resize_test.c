/* resize_test.c - pictures at other sizes against Pillow, byte for byte. */
#include "image/image_test_int.h"

/* 200 pictures, of 1 to 181 pixels a side, made larger and smaller by up to 181 times. */
TEST(resize_is_that_of_pillow)
{
    FILE *f = fopen(test_path("tests/data/images/resize.txt"), "r");
    int n = 0, seed, w, h, tw, th;
    char kind[16], want[TEST_DIGEST], got[TEST_DIGEST];
    CHECK(f);
    while (fscanf(f, "%d %d %d %d %d %15s %16s", &seed, &w, &h, &tw, &th, kind, want) == 7) {
        image m, to;
        err e = {0};
        test_picture(&m, seed, w, h);
        CHECK_OK(image_resize(&to, &m, tw, th,
                              strcmp(kind, "bicubic") ? IMAGE_BILINEAR : IMAGE_BICUBIC, &e),
                 e);
        CHECK(to.width == tw && to.height == th);
        CHECK_MSG(!strcmp(test_image_digest(&to, got), want), "picture %d, %d x %d to %d x %d, %s",
                  seed, w, h, tw, th, kind);
        image_free(&m);
        image_free(&to);
        n++;
    }
    fclose(f);
    CHECK_EQ(n, 200);
}

TEST(resize_refuses_sizes_beyond_the_limits)
{
    AUTO(image_free) image m, to = {1, 2, NULL};
    err e = {0};
    test_picture(&m, 1, 3, 3);
    CHECK_STATUS(image_resize(&to, &m, 0, 3, IMAGE_BICUBIC, &e), E_LIMIT);
    CHECK_STATUS(image_resize(&to, &m, IMAGE_SIDE_MAX + 1, 1, IMAGE_BICUBIC, NULL), E_LIMIT);
    CHECK_STATUS(image_resize(&to, &m, IMAGE_SIDE_MAX, IMAGE_SIDE_MAX, IMAGE_BICUBIC, NULL),
                 E_LIMIT);
    CHECK(to.width == 1 && to.height == 2 && !to.rgb); /* a failed call leaves its output alone */
    CHECK_OK(image_resize(&to, &m, IMAGE_SIDE_MAX, 1, IMAGE_BICUBIC, &e), e);
}

static status resize_once(void *arg, err *e)
{
    AUTO(image_free) image to = {0};
    status st = image_resize(&to, arg, 5, 9, IMAGE_BICUBIC, e);
    return st;
}

TEST(resize_survives_failed_allocations)
{
    AUTO(image_free) image m;
    test_picture(&m, 0, 7, 6);
    test_every_allocation(resize_once, &m);
}
