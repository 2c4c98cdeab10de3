#!/bin/sh
# dist.sh - carat for people who do not build it: a tarball each for x86-64 and aarch64.
#
#     make dist      calls it as: tools/dist.sh VERSION; DIST_ARCHS=x86_64 makes one of them
#
# The program in it needs glibc 2.28 or later and no other library: libcurl (HTTPS alone), OpenSSL,
# libmicrohttpd, libedit, the codecs of pictures and sound, and the small ones are linked statically. Where they come from: libcurl,
# libmicrohttpd, libmpg123 and libsndfile are built from the sources of Debian 12, the others are the static libraries of its
# packages. gcc compiles carat, so its kernels are those that were measured. Zig links it, because it
# has the symbols of old versions of glibc for both architectures.
#
# Runs on Debian 12 with gcc, gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, make, cmake, python3 and network; a program for the other
# architecture is tried under qemu-user. Everything downloaded stays in build/dist, for the next time.
set -eu
cd "$(dirname "$0")/.."
version=$1 glibc=2.28
mkdir -p build/dist
work=$(cd build/dist && pwd)
case $work in *[[:space:]]*) echo "dist.sh: libraries are not built in a path with blanks: $work" >&2; exit 1 ;; esac
say() { printf 'dist: %s\n' "$*"; }
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

# apt with lists of its own: nothing on this system changes. $1 architecture of Debian, then its words.
apt() {
    deb_arch=$1
    shift
    state=$work/apt/$deb_arch
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
    for kind in deb deb-src; do
        echo "$kind [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main"
    done >"$state/sources"
    apt-get -q -o APT::Architecture="$deb_arch" -o APT::Architectures="$deb_arch" -o Dir::Etc::sourcelist="$state/sources" \
        -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$state/lists" -o Dir::Cache="$state/cache" \
        -o Dir::State::status=/dev/null -o APT::Sandbox::User=root "$@"
}

# Zig as a C compiler and archiver, from Python's registry.
get_zig() {
    [ -d "$work/zig/ziglang" ] || {
        say "fetching zig"
        python3 -m pip install -q --target "$work/zig" ziglang
    }
    mkdir -p "$work/bin"
    for a in x86_64 aarch64; do
        printf '#!/bin/sh\nexec %s/zig/ziglang/zig cc -target %s-linux-gnu.%s "$@"\n' "$work" "$a" "$glibc" >"$work/bin/cc-$a"
    done
    printf '#!/bin/sh\nexec %s/zig/ziglang/zig ar "$@"\n' "$work" >"$work/bin/ar"
    chmod +x "$work/bin/"*
}

# The static libraries for one architecture, in $work/ARCH/sys/usr and $work/ARCH/out.
get_libraries() {
    arch=$1 deb_arch=$2 at=$work/$1
    [ -e "$at/libraries" ] && return
    say "libraries for $arch"
    mkdir -p "$at/debs" "$at/sys" "$at/src" "$work/sources"
    apt "$deb_arch" update >/dev/null
    (cd "$at/debs" && apt "$deb_arch" download libjansson-dev libxxhash-dev libzstd-dev libedit-dev libbsd-dev \
        libmd-dev libncurses-dev libtinfo6 libssl-dev zlib1g-dev libpng-dev libjpeg62-turbo-dev libwebp-dev \
        libflac-dev libogg-dev libvorbis-dev libopus-dev libmp3lame-dev >/dev/null)
    for deb in "$at/debs/"*.deb; do dpkg-deb -x "$deb" "$at/sys"; done
    (cd "$work/sources" && apt "$deb_arch" source --download-only curl libmicrohttpd libsndfile >/dev/null)
    # The archive has lost the signature of mpg123's source, without which apt fails. Its sums are those of the list.
    (cd "$work/sources" && apt "$deb_arch" source --download-only mpg123 >/dev/null 2>&1) || [ -n "$(ls "$work/sources/"mpg123_*.orig.tar.bz2)" ]
    for source in "$work/sources/"*.orig.tar.*z; do tar xf "$source" -C "$at/src"; done
    tar xf "$work/sources/"mpg123_*.orig.tar.bz2 -C "$at/src"
    lib=$at/sys/usr/lib/$arch-linux-gnu
    with="--host=$arch-linux-gnu --prefix=$at/out --disable-shared --enable-static --quiet"
    # shellcheck disable=SC2086 # several words
    (cd "$at/src/"libmicrohttpd-* && ./configure $with --disable-https --disable-doc --disable-examples --disable-curl \
        CC="$work/bin/cc-$arch" AR="$work/bin/ar" RANLIB=: CFLAGS="-O2 -fPIC" &&
        make -s -j"$jobs" -C src/microhttpd && make -s -C src/microhttpd install && make -s -C src/include install) \
        >"$at/microhttpd.log" 2>&1 || { tail "$at/microhttpd.log" >&2; exit 1; }
    # shellcheck disable=SC2086 # several words
    (cd "$at/src/"mpg123-* && ./configure $with --disable-components --enable-libmpg123 \
        CC="$work/bin/cc-$arch" AR="$work/bin/ar" RANLIB=: CFLAGS="-O2 -fPIC" && make -s -j"$jobs" && make -s install) \
        >"$at/mpg123.log" 2>&1 || { tail "$at/mpg123.log" >&2; exit 1; }
    (cmake -S "$at/src/"libsndfile-* -B "$at/src/sndfile" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR="$arch" \
        -DCMAKE_C_COMPILER="$work/bin/cc-$arch" -DCMAKE_AR="$work/bin/ar" -DCMAKE_RANLIB=/bin/true -DCMAKE_C_FLAGS="-O2 -fPIC" \
        -DCMAKE_INSTALL_PREFIX="$at/out" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_LIBRARY_ARCHITECTURE="$arch-linux-gnu" \
        -DCMAKE_FIND_ROOT_PATH="$at/out;$at/sys" -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY \
        -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY -DPKG_CONFIG_EXECUTABLE=/bin/false -DBUILD_SHARED_LIBS=OFF \
        -DBUILD_PROGRAMS=OFF -DBUILD_EXAMPLES=OFF -DBUILD_TESTING=OFF -DENABLE_CPACK=OFF &&
        cmake --build "$at/src/sndfile" -j"$jobs" && cmake --install "$at/src/sndfile") \
        >"$at/sndfile.log" 2>&1 || { tail "$at/sndfile.log" >&2; exit 1; }
    for library in sndfile mpg123; do
        [ -e "$at/out/lib/lib$library.a" ] || { echo "dist.sh: lib$library was not built" >&2; exit 1; }
    done
    without=
    for w in zstd brotli libpsl libidn2 nghttp2 librtmp libssh2 libgsasl ca-bundle ca-path; do without="$without --without-$w"; done
    for w in ldap ldaps manual dict file ftp gopher imap mqtt pop3 rtsp smb smtp telnet tftp; do without="$without --disable-$w"; done
    # shellcheck disable=SC2086 # several words
    (cd "$at/src/"curl-* && ./configure $with $without --with-openssl --with-zlib --with-ca-fallback \
        CC="$work/bin/cc-$arch" AR="$work/bin/ar" RANLIB=: CFLAGS="-O2 -fPIC" LDFLAGS="-L$lib" \
        CPPFLAGS="-I$at/sys/usr/include -I$at/sys/usr/include/$arch-linux-gnu" LIBS="-lssl -lcrypto -lz -ldl -lpthread" &&
        make -s -j"$jobs" -C lib && make -s -C lib install && make -s -C include install) \
        >"$at/curl.log" 2>&1 || { tail "$at/curl.log" >&2; exit 1; }
    touch "$at/libraries"
}

# The highest version of glibc that a program asks for.
glibc_of() {
    objdump -T "$1" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -V | tail -n 1
}

make_tarball() {
    arch=$1 at=$work/$1 lib=$work/$1/sys/usr/lib/$1-linux-gnu
    case $arch in
    "$(uname -m)") cc=${CC:-gcc} tools= run= ;;
    *) cc="${CC_CROSS:-$arch-linux-gnu-gcc}" tools=$arch-linux-gnu- run="env QEMU_LD_PREFIX=/usr/$arch-linux-gnu qemu-$arch" ;;
    esac
    say "carat for $arch"
    # A program linked statically has one name space: carat has a utf8_encode and a head_check too.
    "${tools}objcopy" --redefine-sym utf8_encode=jansson_utf8_encode "$lib/libjansson.a" "$at/out/lib/libjansson-apart.a"
    "${tools}objcopy" --redefine-sym head_check=lame_head_check "$lib/libmp3lame.a" "$at/out/lib/libmp3lame-apart.a"
    # Our copies of the headers come first: those of the system may be of other versions.
    sound="-l:libsndfile.a -l:libFLAC.a -l:libvorbisenc.a -l:libvorbis.a -l:libogg.a -l:libopus.a -l:libmpg123.a -l:libmp3lame-apart.a"
    static="-l:libpng16.a -l:libjpeg.a -l:libwebp.a $sound -l:libcurl.a -l:libssl.a -l:libcrypto.a -l:libz.a -l:libmicrohttpd.a -l:libedit.a -l:libbsd.a -l:libmd.a -l:libtinfo.a"
    ${MAKE:-make} --no-print-directory -j"$jobs" BUILD="build/dist/$arch/carat" CC="$cc" LINK="$work/bin/cc-$arch" \
        PKG_CFLAGS="-isystem $at/out/include -idirafter $at/sys/usr/include -idirafter $at/sys/usr/include/$arch-linux-gnu -idirafter $at/sys/usr/include/editline" PKG_DIRS= \
        LDFLAGS="-L$at/out/lib -L$lib" LIBS="-Wl,--build-id -l:libxxhash.a -l:libzstd.a" \
        APP_LIBS="-l:libjansson-apart.a $static $($cc -print-libgcc-file-name) -lm -ldl -lpthread -lrt" "build/dist/$arch/carat/carat"
    program=$work/$arch/carat/carat
    name=carat-$version-linux-$arch
    rm -rf "${work:?}/$name"
    mkdir -p "$work/$name/licences"
    "${tools}objcopy" --only-keep-debug "$program" "$work/$name.debug"
    "${tools}strip" --strip-unneeded -o "$work/$name/carat" "$program"
    (cd "$work" && "${tools}objcopy" --add-gnu-debuglink="$name.debug" "$name/carat")
    needs=$(glibc_of "$work/$name/carat")
    [ "$(printf '%s\n%s\n' "$glibc" "$needs" | sort -V | tail -n 1)" = "$glibc" ] ||
        { echo "dist.sh: $name needs glibc $needs" >&2; exit 1; }
    foreign=$(objdump -p "$work/$name/carat" | awk '$1 == "NEEDED" { print $2 }' |
        grep -Ev '^(libc|libm|libpthread|libdl|librt|ld-linux[-a-z0-9_]*)\.so\.[0-9]+$' || true)
    [ -z "$foreign" ] || { echo "dist.sh: $name needs" $foreign >&2; exit 1; }
    # shellcheck disable=SC2086 # a word, or none
    said=$($run "$work/$name/carat" version) || { echo "dist.sh: $name does not run" >&2; exit 1; }
    [ "$said" = "carat $version" ] || { echo "dist.sh: $name says '$said'" >&2; exit 1; }
    cp LICENSE README.md CHANGELOG.md "$work/$name"
    cp contrib/carat.service "$work/$name"
    # shellcheck disable=SC2086 # a word, or none
    $run "$work/$name/carat" version --licences >"$work/$name/licences/carat.txt"
    # shellcheck disable=SC2086 # a word, or none
    $run "$work/$name/carat" --man >"$work/$name/carat.1"
    for deb in "$work/$arch/sys/usr/share/doc/"*/copyright; do
        package=${deb%/copyright}
        cp "$deb" "$work/$name/licences/${package##*/}.txt"
    done
    cp "$work/$arch/src/"curl-*/COPYING "$work/$name/licences/curl.txt"
    for source in libmicrohttpd mpg123 libsndfile; do
        cp "$work/$arch/src/$source"-*/COPYING "$work/$name/licences/$source.txt"
    done
    date=$(git log -1 --format=%ct 2>/dev/null || date +%s)
    tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$date" -cf - "$name" | gzip -9n >"$work/$name.tar.gz"
    rm -rf "${work:?}/$name"
    (cd "$work" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
    say "build/dist/$name.tar.gz: $(du -h "$work/$name.tar.gz" | cut -f1), glibc $needs or later"
}

get_zig
for arch in ${DIST_ARCHS:-x86_64 aarch64}; do
    case $arch in x86_64) deb_arch=amd64 ;; aarch64) deb_arch=arm64 ;; *) echo "dist.sh: no such architecture: $arch" >&2; exit 2 ;; esac
    get_libraries "$arch" "$deb_arch"
    make_tarball "$arch"
done
