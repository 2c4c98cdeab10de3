#!/bin/sh
# try_systems.sh - builds carat in clean systems, as somebody would who has just cloned it.
#
#     tools/try_systems.sh [SYSTEM[:COMPILER]...]      default: every system with gcc and clang
#
# Systems: bookworm and trixie (Debian 12 and 13), jammy and noble (Ubuntu 22.04 and 24.04). Each is made once with
# debootstrap, in TRY_DIR (default build/systems), which needs root and network. The committed tree is
# built there by an ordinary user, in a path with a blank, without nvcc and without pkg-config, with
# TRY_MAKE (default: -j and the number of processors) as words for make. A compiler "outside" is gcc
# with the headers and libraries of jansson and xxhash in /opt, which pkg-config finds there.
#
# A build fails that prints a warning, or whose program does not answer. Prints a line for each try:
# system, compiler, seconds, result. Logs are beside the systems.
set -eu
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo "try_systems.sh: chroot needs root" >&2; exit 1; }
mkdir -p "${TRY_DIR:=build/systems}"
dir=$(cd "$TRY_DIR" && pwd)
words=${TRY_MAKE:--j$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)}
needed=gcc,g++,clang,make,libc6-dev,libjansson-dev,libcurl4-openssl-dev,libedit-dev,libmicrohttpd-dev,libpng-dev,libjpeg-dev,libwebp-dev,libsndfile1-dev,libxxhash-dev,libzstd-dev

make_system() {
    [ -x "$dir/$1/usr/bin/clang" ] && return
    command -v debootstrap >/dev/null || { echo "try_systems.sh: debootstrap is missing" >&2; exit 1; }
    case $1 in
    jammy | noble) from=http://archive.ubuntu.com/ubuntu more=--components=main,universe script=/usr/share/debootstrap/scripts/gutsy ;;
    *) from=http://deb.debian.org/debian more=--components=main script=/usr/share/debootstrap/scripts/sid ;;
    esac
    debootstrap --variant=minbase "$more" --include="$needed" "$1" "$dir/$1" "$from" "$script" >"$dir/$1.log" 2>&1 ||
        { tail "$dir/$1.log" >&2; exit 1; }
}

# Runs in the system: $1 compiler, then words for make.
inside='
set -eu
cc=$1; shift
cd "/home/guest/a tree"
if [ "$cc" = outside ]; then
    cc=gcc
    PKG_CONFIG_PATH=/opt/deps/pkgconfig
    export PKG_CONFIG_PATH
else
    # No pkg-config, whether or not the system has one.
    mkdir -p "$HOME/bin"
    printf "#!/bin/sh\nexit 127\n" >"$HOME/bin/pkg-config"
    chmod +x "$HOME/bin/pkg-config"
    PATH=$HOME/bin:$PATH
fi
"$cc" --version | head -n 1
make "$@" CC="$cc"
./carat version
./carat run -q --greedy -n 24 "What is carat?" </dev/null
'

# Moves what two libraries need to be built with out of /usr, and back. The libraries themselves stay:
# linkers of some systems use them.
libraries_out() {
    lib=$(echo "$1"/usr/lib/*-linux-gnu)
    mkdir -p "$1/opt/deps/include" "$1/opt/deps/lib" "$1/opt/deps/pkgconfig"
    mv "$1"/usr/include/jansson*.h "$1"/usr/include/x*hash.h "$1"/usr/include/xxh3.h "$1/opt/deps/include"
    mkdir -p "$1/opt/deps/aside"
    mv "$lib/libjansson.so" "$lib/libxxhash.so" "$1/opt/deps/aside"
    ln -sf "${lib#"$1"}/libjansson.so.4" "$1/opt/deps/lib/libjansson.so"
    ln -sf "${lib#"$1"}/libxxhash.so.0" "$1/opt/deps/lib/libxxhash.so"
    for name in jansson libxxhash; do
        printf 'Name: %s\nDescription: moved\nVersion: 99\nLibs: -L/opt/deps/lib -l%s\nCflags: -I/opt/deps/include\n' \
            "$name" "${name#lib}" >"$1/opt/deps/pkgconfig/$name.pc"
    done
}
libraries_back() {
    lib=$(echo "$1"/usr/lib/*-linux-gnu)
    mv "$1/opt/deps/include/"*.h "$1/usr/include"
    mv "$1/opt/deps/aside/"* "$lib"
}

failed=0
try() {
    system=$1 cc=$2 root=$dir/$1 log=$dir/$1-$2.txt
    make_system "$system"
    if [ "$cc" = outside ] && [ ! -x "$root/usr/bin/pkg-config" ]; then
        chroot "$root" apt-get install -y -q --no-install-recommends pkg-config >/dev/null
    fi
    grep -q '^guest:' "$root/etc/passwd" || chroot "$root" useradd --create-home guest
    rm -rf "$root/home/guest/a tree"
    mkdir -p "$root/home/guest/a tree" "$root/dev"
    git archive HEAD | tar x -C "$root/home/guest/a tree"
    chroot "$root" chown -R guest /home/guest
    [ -e "$root/dev/null" ] || mknod -m 666 "$root/dev/null" c 1 3
    [ "$cc" != outside ] || libraries_out "$root"
    begin=$(date +%s)
    # shellcheck disable=SC2086 # several words
    if chroot --userspec=guest "$root" env -i HOME=/home/guest PATH=/usr/bin:/bin LC_ALL=C \
        sh -c "$inside" sh "$cc" $words >"$log" 2>&1; then result=ok; else result=failed; fi
    [ "$cc" != outside ] || libraries_back "$root"
    warnings=$(grep -c 'warning:' "$log" || true)
    [ "$warnings" -eq 0 ] || result="$warnings warnings"
    [ "$result" = ok ] || failed=1
    printf '%-10s%-9s%5d s  %-12s%s\n' "$system" "$cc" $(($(date +%s) - begin)) "$result" "$(head -n 1 "$log")"
}

[ $# -gt 0 ] || set -- bookworm trixie jammy noble trixie:outside
for one in "$@"; do
    case $one in
    *:*) try "${one%:*}" "${one#*:}" ;;
    *) for cc in gcc clang; do try "$one" "$cc"; done ;;
    esac
done
exit $failed
