"""The scripts: each asks the program with the words up to the cursor, and offers its answer."""

from __future__ import annotations

from collections.abc import Mapping

BASH = """\
# bash completion; load it with: source <(kube-ccm completion bash)
__kube_ccm_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" typed offered directive
    read -ra typed <<< "$line"
    [[ $line == *[[:space:]] ]] && typed+=("")
    mapfile -t offered < <(ASK "${typed[@]}" 2> /dev/null)
    ((${#offered[@]})) || return
    directive="${offered[-1]#:}"
    unset "offered[-1]"
    COMPREPLY=("${offered[@]%%$'\\t'*}")
    # bash itself takes --flag=value for three words, unless somebody told it not to.
    [[ $2 == -*=* ]] && COMPREPLY=("${COMPREPLY[@]/#/${2%%=*}=}")
    ((directive & 2)) && compopt -o nospace
    ((directive & 4)) || compopt -o default
} 2> /dev/null
complete -F __kube_ccm_complete PROGRAMS
"""

ZSH = """\
#compdef PROGRAMS
# zsh completion; load it with: source <(kube-ccm completion zsh)
__kube_ccm_complete() {
    local -a offered
    offered=("${(@f)$(ASK "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2> /dev/null)}")
    local -i directive="${offered[-1]#:}"
    offered[-1]=()
    compset -P '-*='
    if ! ((directive & 4)); then _files; return; fi
    offered=("${(@)${(@)offered//:/\\\\:}//$'\\t'/:}")
    local -a open=(${(M)offered:#[^:]##=(:*|)}) closed=(${offered:#[^:]##=(:*|)})
    ((directive & 2)) && open+=($closed) && closed=()
    _describe word open -S '' -- closed
}
compdef __kube_ccm_complete PROGRAMS
"""

FISH = """\
# fish completion; load it with: kube-ccm completion fish | source
function __kube_ccm_complete
    set -l last (commandline -ct)
    set -l offered (ASK (commandline -opc) "$last" 2> /dev/null)
    set -l flag (string match -r -- '^-[^=]*=' "$last")
    test "$offered[-1]" = :0
    and set offered (__fish_complete_path (string replace -- "$flag" "" "$last")) :0
    string replace -r -- '^' "$flag" $offered[1..-2]
end
for program in PROGRAMS
    complete -c $program -e
    complete -c $program -f -a '(__kube_ccm_complete)'
end
"""

TEXTS: Mapping[str, str] = {"bash": BASH, "zsh": ZSH, "fish": FISH}
"""Shell -> script; `ASK` stands for the command line that is asked, `PROGRAMS` for the programs."""
