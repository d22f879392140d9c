#include "postgres.h"
#include <unistd.h>
#include "transfer.h"
static void *q[4096]; static int h=0,t=0;
void TransferStart(const TransferRequest *r, void *o){ q[t++%4096]=o; }
bool TransferNext(TransferResult *r){ if(h==t) return false; memset(r,0,sizeof(*r)); r->owner=q[h++%4096]; r->status=204; r->retry_after=-1; return true; }
void TransferDrive(void){}
int TransferInFlight(void){return t-h;}
int TransferSocket(void){return -1;}
long TransferTimeout(void){return h==t?-1:0;}
void TransferForgetAll(void){}
