#!/bin/sh
# deb.sh - Debian packages of what is built: carat, libcarat0, libcarat-dev and debug information.
#
#     make deb          calls it as: tools/deb.sh VERSION OUTPUT_DIRECTORY MAKE_ARGUMENTS...
#
# The packages hold what `make install` puts into a staging directory, with nothing compiled again.
# Dependencies come from dpkg-shlibdeps, or where that is missing from the packages that own the
# libraries. No package has a script: nothing is started or enabled by installing.
set -eu
cd "$(dirname "$0")/.."
version=$1 out=$2
shift 2
command -v dpkg-deb >/dev/null || { echo "deb.sh: dpkg-deb is missing (Debian package dpkg)" >&2; exit 1; }
arch=$(dpkg --print-architecture)
triplet=$(${CC:-gcc} -print-multiarch)
[ -n "$triplet" ] || triplet=$(${CC:-gcc} -dumpmachine)
so=$(printf '%s' "$version" | cut -d. -f1)
# Packages of one commit are alike, byte for byte.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
work=$out/work
rm -rf "$work"
mkdir -p "$work/stage" "$work/debian"
${MAKE:-make} --no-print-directory "$@" install DESTDIR="$(cd "$work" && pwd)/stage" PREFIX=/usr \
    LIBDIR="/usr/lib/$triplet" ZSH_DIR=zsh/vendor-completions >/dev/null

# Moves paths of the staging directory, relative to /usr, into a package.
take() {
    package=$1
    shift
    for path in "$@"; do
        mkdir -p "$work/$package/usr/$(dirname "$path")"
        mv "$work/stage/usr/$path" "$work/$package/usr/$path"
    done
}

library=lib/$triplet/libcarat.so
take "libcarat$so" "$library.$so" "$library.$version"
take libcarat-dev "$library" "lib/$triplet/libcarat.a" "lib/$triplet/pkgconfig/carat.pc" \
    include/carat.h include/carat_bench.h include/carat
take carat bin/carat share/man/man1/carat.1 share/bash-completion/completions/carat \
    share/zsh/vendor-completions/_carat share/fish/vendor_completions.d/carat.fish
rm -f "$work/stage/usr/share/carat/demo.gguf" # the program holds the bundled model

# Debug information goes where debuggers look for it by build ID. $1 package, $2 the program in it,
# $3 its debug information in the staging directory.
take_debug() {
    id=$(LC_ALL=C readelf -n "$work/$1/usr/$2" | sed -n 's/ *Build ID: //p')
    [ -n "$id" ] || { echo "deb.sh: $2 has no build ID" >&2; exit 1; }
    to=$work/$1-dbgsym/usr/lib/debug/.build-id/${id%"${id#??}"}
    mkdir -p "$to"
    mv "$work/stage/usr/$3" "$to/${id#??}.debug"
}
take_debug carat bin/carat bin/.debug/carat.debug
take_debug "libcarat$so" "$library.$version" "lib/$triplet/.debug/libcarat.so.debug"
left=$(find "$work/stage" ! -type d)
[ -z "$left" ] || { echo "deb.sh: in no package:" "$left" >&2; exit 1; }

strip --strip-unneeded --remove-section=.comment --remove-section=.note "$work/carat/usr/bin/carat" \
    "$work/libcarat$so/usr/$library.$version"
chmod 644 "$work/libcarat$so/usr/$library.$version"
strip --strip-debug --enable-deterministic-archives "$work/libcarat-dev/usr/lib/$triplet/libcarat.a"
gzip -9n "$work/carat/usr/share/man/man1/carat.1"
install -d "$work/carat/usr/lib/systemd/system" "$work/carat/usr/share/doc/carat"
sed 's#/usr/local/bin/#/usr/bin/#; /^#     install -Dm644/d' contrib/carat.service \
    >"$work/carat/usr/lib/systemd/system/carat.service"
install -m 644 README.md CHANGELOG.md docs/*.md "$work/carat/usr/share/doc/carat"

# $1 package, $2 section, $3 dependencies, $4 summary, $5 description.
finish() {
    package=$1
    doc=$work/$package/usr/share/doc/$package
    install -d "$doc" "$work/$package/DEBIAN"
    {
        printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n'
        printf 'Upstream-Name: carat\n\nFiles: *\nCopyright: %s the authors of carat\nLicense: Apache-2.0\n' \
            "$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y)"
        printf ' On Debian systems the text of the Apache License, version 2.0, is in\n'
        printf ' /usr/share/common-licenses/Apache-2.0.\n'
        case $package in # the program has the chat page
        carat*) tools/licences.sh debian ;;
        *) tools/licences.sh library ;;
        esac
    } >"$doc/copyright"
    {
        printf 'carat (%s) unstable; urgency=medium\n\n' "$version"
        printf '  * Version %s; CHANGELOG.md of the package carat lists the changes.\n' "$version"
        printf '\n -- %s  %s\n' "$maintainer" "$(LC_ALL=C date -Ru -d "@$SOURCE_DATE_EPOCH")"
    } | gzip -9n >"$doc/changelog.gz"
    find "$work/$package" -type d -exec chmod 755 {} +
    size=$(du -k -s --apparent-size "$work/$package" | cut -f1)
    {
        printf 'Package: %s\nSource: carat\nVersion: %s\nArchitecture: %s\nMaintainer: %s\n' \
            "$package" "$version" "$arch" "$maintainer"
        printf 'Installed-Size: %s\nSection: %s\nPriority: optional\n' "$size" "$2"
        case $package in *-dbgsym) printf 'Auto-Built-Package: debug-symbols\n' ;; libcarat?*[0-9]) printf 'Multi-Arch: same\n' ;; esac
        [ -z "$3" ] || printf 'Depends: %s\n' "$3"
        printf 'Description: %s\n%s\n' "$4" "$5"
    } >"$work/$package/DEBIAN/control"
    (cd "$work/$package" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    chmod 644 "$work/$package/DEBIAN/"*
    dpkg-deb --build --root-owner-group "$work/$package" "$out/${package}_${version}_$arch.deb" >/dev/null
    echo "$out/${package}_${version}_$arch.deb"
}

# The packages that a file's libraries need.
needs() {
    if command -v dpkg-shlibdeps >/dev/null; then
        (cd "$work" && dpkg-shlibdeps --ignore-missing-info -O "$1" 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
        return
    fi
    ldd "$work/$1" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | while read -r lib; do
        dpkg -S "$(readlink -f "$lib")" 2>/dev/null || dpkg -S "*/$(basename "$lib")"
    done | sed 's/:.*//' | LC_ALL=C sort -u | paste -sd, | sed 's/,/, /g'
}

maintainer=${DEB_MAINTAINER:-carat maintainers <maintainers@localhost>}
printf 'Source: carat\nMaintainer: %s\n\nPackage: carat\nArchitecture: any\n' "$maintainer" >"$work/debian/control"
program_needs=$(needs carat/usr/bin/carat)
library_needs=$(needs "libcarat$so/usr/$library.$version")
[ -n "$program_needs" ] && [ -n "$library_needs" ] ||
    { echo "deb.sh: the needed packages could not be found" >&2; exit 1; }

mkdir -p "$work/libcarat$so/DEBIAN"
printf 'libcarat %s libcarat%s (>= %s)\n' "$so" "$so" "$version" >"$work/libcarat$so/DEBIAN/shlibs"
printf 'activate-noawait ldconfig\n' >"$work/libcarat$so/DEBIAN/triggers"
text=' carat runs Gemma 4, Qwen3 to Qwen3.8 and Laguna from GGUF files, on CPUs
 and NVIDIA GPUs, on the command line and as a server for clients of OpenAI
 and Anthropic.
 .'
finish carat utils "$program_needs" 'inference engine for language models' "$text
 This package has the program, its manual, completions for bash, zsh and fish,
 and a unit for systemd, which is not enabled."
finish "libcarat$so" libs "$library_needs" 'inference engine for language models - library' "$text
 This package has the shared library."
for program in carat "libcarat$so"; do
    mkdir -p "$work/$program-dbgsym/DEBIAN"
    finish "$program-dbgsym" debug "$program (= $version)" "debug information of $program" "$text
 This package has the debug information of the package $program."
done
# pkg-config --static names the last two.
finish libcarat-dev libdevel "libcarat$so (= $version), libxxhash-dev, libzstd-dev" \
    'inference engine for language models - development' "$text
 This package has the headers, the static library and the pkg-config file."
rm -rf "$work"
