#!/bin/sh
# demo_text.sh [TOKENS] - a text of about that many tokens (8000) with one fact in its middle.
#
# Plain sentences from short word lists, equal on every machine: a linear congruential generator
# draws them, because each awk has random numbers of its own.
awk -v tokens="${1:-8000}" '
function pick(list, n) { seed = (seed * 16807) % 2147483647; return list[1 + seed % n] }
BEGIN {
    seed = 4821
    nn = split("Mira Tomas Anna Peter Lena Oskar Nina Karl Sofia Jonas Clara Felix Marta Hugo Ida", name, " ")
    np = split("kitchen garden cellar harbour market library station museum park bakery workshop tower", place, " ")
    nt = split("lamp box door chair table cup bottle basket ladder rope clock mirror window blanket bell", thing, " ")
    nz = split("cat dog fox owl hen cow horse goat sheep mouse rabbit heron", animal, " ")
    nj = split("baker teacher doctor sailor farmer painter gardener pilot driver nurse clerk", job, " ")
    nf = split("bread soup cheese rice cake honey butter salad stew pie jam tea", food, " ")
    nx = split("small large old new round heavy light tall wooden dusty quiet cold", adj, " ")
    nc = split("Porto Rome Oslo Lima Cairo Paris Berlin Madrid Vienna Prague Dublin Lisbon", city, " ")
    for (used = 0; used < tokens; used += 16.4) {
        if (!told && used >= tokens / 2) {
            printf "The secret code of the copper lantern is 7306. "
            told = 1
        }
        seed = (seed * 16807) % 2147483647
        k = seed % 8
        if (k == 0) s = pick(name, nn) " walked slowly to the " pick(place, np) " and sat down near the old " pick(thing, nt) "."
        if (k == 1) s = "In the morning the " pick(job, nj) " opened the " pick(place, np) ", and the smell of " pick(food, nf) " filled the street."
        if (k == 2) s = "The " pick(animal, nz) " slept under the " pick(adj, nx) " " pick(thing, nt) " while the rain fell on the " pick(place, np) "."
        if (k == 3) s = "The road from " pick(city, nc) " to " pick(city, nc) " passes a " pick(place, np) " and a " pick(adj, nx) " " pick(thing, nt) "."
        if (k == 4) s = "The " pick(job, nj) " told " pick(name, nn) " that the " pick(thing, nt) " was too heavy to carry."
        if (k == 5) s = pick(name, nn) " asked the " pick(job, nj) " for " pick(food, nf) ", but there was only " pick(food, nf) " left."
        if (k == 6) s = "Nobody in " pick(city, nc) " had seen such a " pick(adj, nx) " " pick(thing, nt) " before."
        if (k == 7) s = "The people of " pick(city, nc) " are proud of their " pick(place, np) " and of their " pick(food, nf) "."
        printf "%s ", s
    }
    printf "\n"
}'
