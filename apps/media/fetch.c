/* fetch.c - see fetch.h.
 *
 * The address is checked where libcurl makes a connection. A check before that would be of no use:
 * a name may have another address a moment later.
 */
#include "apps/media/fetch.h"

#include "apps/hub/net.h"
#include "apps/media/pictures.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

/* Networks that are not public: of IPv4, as address and length of the prefix. */
static const struct {
    uint32_t net;
    int bits;
} private_v4[] = {
    {0x00000000, 8},  {0x0A000000, 8},  {0x64400000, 10}, {0x7F000000, 8},  {0xA9FE0000, 16},
    {0xAC100000, 12}, {0xC0000000, 24}, {0xC0000200, 24}, {0xC0A80000, 16}, {0xC6120000, 15},
    {0xC6336400, 24}, {0xCB007100, 24}, {0xE0000000, 4}, /* multicast */
    {0xF0000000, 4},
};

static bool public_v4(uint32_t a)
{
    for (size_t i = 0; i < sizeof private_v4 / sizeof *private_v4; i++)
        if ((a ^ private_v4[i].net) >> (32 - private_v4[i].bits) == 0)
            return false;
    return true;
}

bool address_is_public(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, a, sizeof in);
        return public_v4(ntohl(in.sin_addr.s_addr));
    }
    if (a->sa_family != AF_INET6)
        return false;
    struct sockaddr_in6 in6;
    memcpy(&in6, a, sizeof in6);
    const uint8_t *b = in6.sin6_addr.s6_addr;
    /* 2000::/3 is what is routed. Inside of it: 6to4 and Teredo hold an IPv4 address, and
     * 2001:db8::/32 is for documents. */
    return b[0] >> 5 == 1 && !(b[0] == 0x20 && b[1] == 0x02) &&
           !(b[0] == 0x20 && b[1] == 0x01 &&
             ((b[2] == 0 && b[3] == 0) || (b[2] == 0x0D && b[3] == 0xB8)));
}

typedef struct download {
    uint8_t *bytes;
    size_t n, cap;
    bool refused, too_large, no_memory;
} download;

static curl_socket_t open_public(void *user, curlsocktype purpose, struct curl_sockaddr *a)
{
    download *d = user;
    (void)purpose;
    if (!address_is_public(&a->addr)) {
        d->refused = true;
        return CURL_SOCKET_BAD;
    }
    return socket(a->family, a->socktype, a->protocol);
}

static size_t take_bytes(char *bytes, size_t one, size_t n, void *user)
{
    download *d = user;
    (void)one;
    if (n > PICTURE_FETCH_MAX_BYTES - d->n) {
        d->too_large = true;
        return 0;
    }
    if (d->n + n > d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 64 << 10;
        cap = cap > d->n + n ? cap : d->n + n;
        uint8_t *more = mem_realloc(d->bytes, cap, 1);
        if (!more) {
            d->no_memory = true;
            return 0;
        }
        d->bytes = more;
        d->cap = cap;
    }
    memcpy(d->bytes + d->n, bytes, n);
    d->n += n;
    return n;
}

status picture_fetch(const char *url, const char *name, uint8_t **bytes, size_t *n, err *e)
{
    download d = {0};
    long code = 0;
    if (!url_valid(url))
        return err_set(e, E_FORMAT, "%s: no address that carat fetches from", name);
    CURL *c = net_plain(url);
    if (!c)
        return err_memory(e, "a connection", 0);
    curl_easy_setopt(c, CURLOPT_OPENSOCKETFUNCTION, open_public);
    curl_easy_setopt(c, CURLOPT_OPENSOCKETDATA, &d);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, &d);
    curl_easy_setopt(c, CURLOPT_PROXY, ""); /* a proxy would connect to what is refused here */
    curl_easy_setopt(c, CURLOPT_TIMEOUT, (long)PICTURE_FETCH_S);
    curl_easy_setopt(c, CURLOPT_MAXFILESIZE, (long)PICTURE_FETCH_MAX_BYTES);
    CURLcode r = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_cleanup(c);
    status st = OK;
    if (d.no_memory)
        st = err_memory(e, name, d.n);
    else if (r && d.refused)
        st = err_set(e, E_UNSUPPORTED, "%s: the address is not of the public internet", name);
    else if (d.too_large || r == CURLE_FILESIZE_EXCEEDED)
        st = err_set(e, E_LIMIT, "%s: the address answers with more than %d bytes", name,
                     PICTURE_FETCH_MAX_BYTES);
    else if (r)
        st =
            err_set(e, E_FORMAT, "%s: the address cannot be read: %s", name, curl_easy_strerror(r));
    else if (code != 200)
        st = err_set(e, E_FORMAT, "%s: the address answers with the status %ld", name, code);
    if (st) {
        mem_free(d.bytes);
        return st;
    }
    if (!d.bytes)
        return err_set(e, E_FORMAT, "%s: the address answers with nothing", name);
    *bytes = d.bytes;
    *n = d.n;
    return OK;
}
